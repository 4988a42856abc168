"""`python -m compare.run`: the verb `run` by the name that every committed cell has."""

import sys

from compare.run.command import main

if __name__ == "__main__":
    sys.exit(main())
