"""The exit codes of every command, and how errors are printed; docs/measuring.md explains each code."""

import argparse
import contextlib
import difflib
import functools
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from common.process import print_every_character

OK, WRONG, USAGE, NO_GPU, GATE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


def ending(work: Callable[[], int], usage: tuple[type[Exception], ...]) -> int:
    """Run `work` and return its exit code: USAGE for one of the errors `usage` and for a file that cannot be read or
    written, whose message is printed; INTERRUPTED for Ctrl-C; OK where the reader of a pipe has gone (`... | head`)."""
    print_every_character()
    try:
        return work()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit complains
        return OK
    except (*usage, OSError) as error:
        say(error)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def refusing(*errors: type[Exception]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a verb's `main` end with USAGE where it raises one of `errors`, whose message is printed; `ending` does so
    for files."""

    def decorated(main: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(main)
        def refuses(*asked: Any) -> int:
            try:
                return main(*asked)
            except BrokenPipeError:  # for `ending`
                raise
            except errors as error:
                say(error)
                return USAGE

        return refuses

    return decorated


MOST_LINES = 5  # of an error message
_SAID = re.compile(
    r"(?P<what>[^:]+): found (?P<found>.+?)[,;] allowed (?P<allowed>.+?)"
    r"(?:; (?:the )?nearest(?::| is) (?P<near>[^;]+))?",
    re.DOTALL,
)


def say(error: object) -> None:
    """Print an error on stderr, formatted by `told`."""
    bare = isinstance(error, OSError) and error.filename is not None and error.strerror and str(error)[:1] == "["
    message = f"{error.filename}: {error.strerror}" if bare else str(error)
    print(told(message, shutil.get_terminal_size().columns), file=sys.stderr, flush=True)


def told(message: str, width: int) -> str:
    """A message for a window of so many columns, at most MOST_LINES lines long.

    The nearest names of `what: found x, allowed y; nearest: z` come first, on a line of their own. Allowed values are
    cut where there is no room. Nothing is wrapped: a pipe's reader finds paths and ids whole.
    """
    if "\n" in message or not (parts := _SAID.fullmatch(message)):
        return message
    what, found = parts["what"], f"found {parts['found']}, allowed "
    head = f"{what}: did you mean {parts['near']}?\n  {found}" if parts["near"] else f"{what}: {found}"
    taken = sum(-(-len(line) // width) for line in head.splitlines())
    room = max((MOST_LINES - taken) * width, width) + width - len(head.splitlines()[-1]) % width - 1
    return head + textwrap.shorten(parts["allowed"], max(room, 40), placeholder=" ...")


def nearest(found: str, names: Iterable[str], most: int = 3, cutoff: float = 0.4) -> str:
    """`; nearest: a, b` for the end of a refusal; empty where no name is like `found`."""
    near = difflib.get_close_matches(found, list(names), most, cutoff)
    return f"; nearest: {', '.join(near)}" if near else ""


class Parser(argparse.ArgumentParser):
    """argparse's parser, whose refusals are printed like every other error, without the list of options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, but an empty word is refused: as a value it would count as none given, or as this folder."""
        words = self._words = sys.argv[1:] if args is None else list(args)
        for before, word in zip(["", *words], words, strict=False):
            if word == "" or (word.startswith("--") and word.endswith("=")):
                name = word[:-1] or (before if before.startswith("-") else "arguments")
                self.error(f"{name}: found '', allowed a word that is not empty")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        say(self._in_our_words(message))
        print(f"{self.prog} --help lists what there is", file=sys.stderr)
        sys.exit(USAGE)

    def _in_our_words(self, message: str) -> str:
        for pattern, words in _ARGPARSES:
            if match := re.fullmatch(pattern, message, re.DOTALL):
                return words(self, *match.groups())
        return message

    def unknown(self, given: str) -> str:
        options = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        word = given.split()[0]
        if not word.startswith("-"):
            return f"arguments: found {given}, allowed none beside the options"
        return f"option: found {word}, allowed those of --help{nearest(word.partition('=')[0], options, 1, 0.5)}"

    def no_value(self, name: str) -> str:
        """argparse takes a value that begins with - for an option."""
        behind = next((word for before, word in zip(self._words, self._words[1:], strict=False) if before == name), "")
        if not behind:
            return f"{name}: found nothing behind it, allowed one value"
        return f"{name}: found {behind:.40}, allowed one value, as {name}=VALUE"

    def no_choice(self, name: str, found: str, choices: str) -> str:
        allowed = [choice.strip("' ") for choice in choices.split(",")]
        near = nearest(found.strip("'"), allowed, 1, 0.5)
        return f"{name}: found {found}, allowed {', '.join(allowed)}{near}"


_ARGPARSES: tuple[tuple[str, Callable[..., str]], ...] = (
    (r"unrecognized arguments: (.+)", Parser.unknown),
    (r"argument (\S+): invalid choice: (.+?) \(choose from (.+)\)", Parser.no_choice),
    (r"argument (\S+): expected one argument", Parser.no_value),
    (
        r"argument (\S+): not allowed with argument (\S+)",
        lambda _, name, other: f"{name}: found beside {other}, allowed one of the two",
    ),
    (r"argument (\S+): ignored explicit argument (.+)", lambda _, name, found: f"{name}: found {found}, allowed alone"),
    (r"argument (\S+): (found .+)", lambda _, name, words: f"{name}: {words}"),
    (
        r"argument (\S+): invalid (\S+) value: (.+)",
        lambda _, name, kind, found: f"{name}: found {found}, allowed a {kind}",
    ),
    (r"the following arguments are required: (.+)", lambda _, names: f"missing: {names}"),
    (
        r"ambiguous option: (\S+) could match (.+)",
        lambda _, found, names: f"option: found {found}, allowed one of {names}",
    ),
)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """In this context SIGTERM raises KeyboardInterrupt, as Ctrl-C does.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
