"""`python -m compare.run`: the verb `run` by the name that every committed cell has."""

import sys

from common import versions
from compare.exits import ending


def main() -> int:
    def work() -> int:
        versions.admit("compare")
        from compare.run import command  # imports torch

        return command.main()

    return ending(work, (versions.Unsuitable,))


if __name__ == "__main__":
    sys.exit(main())
