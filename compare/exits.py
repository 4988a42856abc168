"""The exit codes of every command; docs/measuring.md says what each means."""

from __future__ import annotations

import sys
from collections.abc import Callable

OK, WRONG, USAGE, NO_GPU, GATE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


def ending(work: Callable[[], int], usage: tuple[type[Exception], ...]) -> int:
    """What `work` returns; USAGE for one of the errors `usage`, whose message is printed; INTERRUPTED for Ctrl-C."""
    try:
        return work()
    except usage as error:
        print(error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
