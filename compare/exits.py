"""The exit codes of every command; docs/measuring.md says what each means."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

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


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Meanwhile a SIGTERM is a KeyboardInterrupt, as Ctrl-C is; then the caller's handler is back.

    Only the main thread may say so: in another nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
