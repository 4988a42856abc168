"""`python -m diptych`: the one command, compare/__main__.py."""

import sys

from diptych.compare.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
