"""The words of a verb with --fleet: which cluster, whether versions may differ, and the words of the verb itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compare.exits import Parser
from compare.fleet.cluster import AUTO


@dataclass(frozen=True)
class Asked:
    """address: HOST:PORT, auto or local. mixed: seats of one kind may have different versions. words: all others."""

    address: str
    mixed: bool
    words: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> Asked:
        own = Parser(prog="--fleet", add_help=False, allow_abbrev=False)
        own.add_argument("--fleet", nargs="?", const=AUTO)
        own.add_argument("--mixed", action="store_true")
        found, rest = own.parse_known_args(words)
        return cls(found.fleet, found.mixed, tuple(rest))
