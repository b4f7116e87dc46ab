"""`python -m stratagem_lightning program.py [args]`: run an unchanged Lightning program."""

from __future__ import annotations

import os
import runpy
import sys

from stratagem_lightning.redirect import install

USAGE = """\
usage: python -m stratagem_lightning PROGRAM.py [ARGUMENT…]
       python -m stratagem_lightning -m MODULE [ARGUMENT…]

Run a program in which `import lightning`, `pytorch_lightning` and `lightning_fabric` are stratagem_lightning."""


def main(arguments: list[str]) -> int:
    """Run the program that the arguments name. Returns an exit code if the arguments are wrong."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    is_module = arguments[:1] == ["-m"]
    given = arguments[is_module:]
    if not given:
        print(f"Error: no program was given\n{USAGE}", file=sys.stderr)
        return 2
    name = given[0]
    if not is_module and not os.path.isfile(name):
        print(f"Error: there is no program {name!r}: give the path of a file", file=sys.stderr)
        return 2
    # As Python sets it for a program; so far it has the path that Python sets for `-m stratagem_lightning`.
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(name))
    sys.argv = given
    install()
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
