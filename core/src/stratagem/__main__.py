"""`python -m stratagem`: the command line of stratagem-cli, by the Python that runs it."""

import sys

from stratagem import import_from

if __name__ == "__main__":
    sys.exit(import_from("stratagem_cli.main", "main")())
