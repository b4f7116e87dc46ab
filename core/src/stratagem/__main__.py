"""`python -m stratagem`: the installed command `stratagem`, by the Python that runs it."""

import sys

import importlib_metadata

from stratagem.names.lazy import import_from

if __name__ == "__main__":
    error: object = "the command line isn't installed: pip install stratagem"
    for entry_point in importlib_metadata.entry_points(group="console_scripts", name="stratagem"):
        try:
            main = import_from(entry_point.module, entry_point.attr, "the command line")
        except ImportError as absent:
            error = absent
        else:
            sys.exit(main())
    print(f"Error: {error}", file=sys.stderr)
    sys.exit(2)
