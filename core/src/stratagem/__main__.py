"""`python -m stratagem`: the command line of stratagem-cli, by the Python that runs it."""

import sys

from stratagem.names.lazy import import_from

if __name__ == "__main__":
    try:
        main = import_from("stratagem_cli.main", "main", "the command line")
    except ImportError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
