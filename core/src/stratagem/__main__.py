"""`python -m stratagem`: the command line, by the Python that runs it."""

import sys

from stratagem.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
