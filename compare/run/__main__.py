"""`python -m compare.run`: the verb `run` by the name that every committed cell has."""

import sys

from compare.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
