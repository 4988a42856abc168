"""Every choice that calls of a capacity can get, with the points of the grid that get it and its scratch.

In: a family, a shape, a capacity, features. Out: choices, a layout of scratch for each, bytes. Allocates nothing.
"""

from dataclasses import InitVar, dataclass, field
from typing import Any

import torch

from common.gpus import gpu_of
from common.serving import scratch
from common.serving.arguments import DEVICES
from common.serving.choice import Choice, Family
from common.serving.grid import on_grid, power_of_two, reachable_stats, rounded, seen
from common.serving.lean import lean
from common.serving.pieces import few_segments, pieces
from common.spec import AttentionShape, Features, SpecError
from common.spec.feature_rules import check_numbers
from common.spec.kernel import Capacity, asked_of_shape
from common.spec.metadata import EVERY_KEY, BatchStats, cdiv
from common.spec.plain import shown
from common.spec.refusals import expect, expect_flag, expect_integer

_PLAIN = Features()


@dataclass
class Reach:
    """The choices of a capacity, made with it. Raises SpecError.

    kernel: the kernel that serves every call; None where `auto` chooses. only: its single choice, with `one_config`.
    slack: the share of its predicted time that a batch may lose, so that `family` has fewer configs (lean.py).
    choices: each with the stats that reach it. parts: what a warm-up compiles for them (`pieces`).
    room, layouts: of each choice, the largest batch and its scratch; also of choices that calls added later.
    """

    family: Family
    shape: AttentionShape
    max_tokens: int
    max_seqs: int
    max_seq_len: int
    device: torch.device | str
    features: Features = _PLAIN
    kernel: str | None = None
    max_keys: int | None = None
    one_config: InitVar[bool] = True
    slack: float = 0.0
    only: Choice | None = field(default=None, init=False)
    choices: dict[Choice, list[BatchStats]] = field(init=False)
    parts: set[tuple[str, str, Any]] = field(init=False)
    room: dict[Choice, tuple[int, int]] = field(default_factory=dict, init=False)  # tokens and sequences
    layouts: dict[Choice, scratch.Layout] = field(default_factory=dict, init=False)

    def __post_init__(self, one_config: bool) -> None:
        for name in ("max_tokens", "max_seqs", "max_seq_len"):
            setattr(self, name, expect_integer(getattr(self, name), name, 1))
        self.max_keys = self.max_seq_len if self.max_keys is None else expect_integer(self.max_keys, "max_keys", 0)
        one_config = expect_flag(one_config, "one_config")
        for name, kind in (("shape", AttentionShape), ("features", Features)):
            value = getattr(self, name)
            expect(isinstance(value, kind), name, type(value).__name__, f"common.spec.{kind.__name__}")
        check_numbers(self.features)  # of its tensors a call's are checked
        if self.kernel is not None:
            expect_kernel(self.family, self.kernel)
        expect(isinstance(self.slack, int | float) and 0 <= self.slack < 1, "slack", shown(self.slack), "0 to below 1")
        self.device = _numbered(self.device)
        self.choices = self._choices(one_config)
        self.parts = {piece for choice in self.choices for piece in pieces(choice)}
        for choice, reached in self.choices.items():
            self._place(choice, self._most(reached))
        most = self.num_bytes
        for choice in self.choices:
            self._place(choice, self._whole, most)

    @property
    def needs(self) -> frozenset[str]:
        return self.features.names() | asked_of_shape(self.shape)

    @property
    def num_bytes(self) -> int:
        return max(layout.num_bytes for layout in self.layouts.values())

    def _choices(self, one_config: bool) -> dict[Choice, list[BatchStats]]:
        limits = (self.max_tokens, self.max_seqs, self.max_seq_len)
        if self.kernel is None:
            gpu = gpu_of(self.device)
            self.family = lean(self.family, self.shape, gpu, limits, self.features, self.slack)
            return self.family.reachable(self.shape, gpu, *limits, self.needs, self.features.sees)
        if one_config:
            stats = on_grid(self.max_seqs, 0, cdiv(self.max_tokens, self.max_seqs), self.max_seq_len)
            self.only = self._named(stats, self.features.sees)
            return {self.only: [on_grid(self.max_seqs, self.max_seqs, 1, self.max_seq_len), stats]}
        found: dict[Choice, list[BatchStats]] = {}
        for stats in reachable_stats(*limits):
            found.setdefault(self._config_at(stats, self.features.sees), []).append(stats)
        return found

    def take_measured(self) -> None:
        """Add the winners that were measured since, each for the batches of its key."""
        gpu = gpu_of(self.device)
        if gpu is None or self.kernel is not None:
            return
        for stats in self.family.won(self.shape, gpu, self.max_tokens, self.max_seqs, self.max_seq_len):
            choice = self.choose(stats, self.needs, self.features.sees)
            if choice not in self.choices:
                self.choices[choice] = [stats]
                self.parts |= set(pieces(choice))
                self._place(choice, self._most([stats]))

    def layout_at(self, choice: Choice, stats: BatchStats) -> scratch.Layout:
        """The layout of a choice's scratch for batches of up to these sizes."""
        return self._layout(choice, *self._most([stats]))

    def _named(self, stats: BatchStats, sees: int) -> Choice:
        return self.family.named(self.kernel, self.shape, seen(stats, sees), gpu_of(self.device))

    def _config_at(self, stats: BatchStats, sees: int) -> Choice:
        choice = self._named(stats, sees)
        config = few_segments(choice.config, self.shape, stats)
        return Choice(choice.kernel, config, choice.path, choice.provenance)

    def choose(self, stats: BatchStats, needs: frozenset[str], sees: int = EVERY_KEY) -> Choice:
        """The choice for exact stats. A window larger than the plan's counts as the plan's."""
        sees = min(sees, self.features.sees)
        if self.kernel is not None:
            return self._config_at(stats, sees)
        return self.family.choose(self.shape, stats, gpu_of(self.device), needs, sees=sees)

    def on_grid(self, stats: BatchStats, needs: frozenset[str], sees: int = EVERY_KEY) -> Choice:
        """The choice for stats rounded to the grid, which is one of `choices` and compiled by a warm-up."""
        if self.only is not None:
            return self.only
        keys = min(seen(stats, sees).max_seq_len, self.max_seq_len)
        point = on_grid(stats.num_seqs, stats.num_decodes, stats.max_query_len, keys)
        return self.choose(point, needs, self.features.sees)

    def _most(self, reached: list[BatchStats]) -> tuple[int, int]:
        """(tokens rounded up to sixteens, sequences) of the largest batch that reaches a choice."""
        tokens, seqs = self.max_tokens, self.max_seqs
        if self.only is None:
            tokens = min(tokens, max(stats.num_seqs * stats.max_query_len for stats in reached))
            seqs = min(seqs, max(stats.num_seqs for stats in reached))
        return cdiv(tokens, 16) * 16, seqs

    @property
    def _whole(self) -> tuple[int, int]:
        """(tokens rounded up to sixteens, sequences) of the capacity."""
        return cdiv(self.max_tokens, 16) * 16, self.max_seqs

    def _place(self, choice: Choice, room: tuple[int, int], num_bytes: int | None = None, steps: bool = True) -> bool:
        """Give a choice scratch for `room`; return whether it fits.

        It does not fit if the scratch exceeds num_bytes, or if it has memory of a step and `steps` is False.
        """
        layout = self._layout(choice, *room)
        if (num_bytes is not None and layout.num_bytes > num_bytes) or (layout.step_bytes and not steps):
            return False
        self.room[choice], self.layouts[choice] = room, layout
        return True

    def admits(self, choice: Choice, stats: BatchStats, num_bytes: int) -> bool:
        """Whether a batch may get a choice: a warm-up compiles all its parts, and num_bytes hold its scratch.

        Batches lie between points of the grid, so they may get a choice that no point gets. A choice with memory of a
        step never grows, because captured graphs hold addresses in that memory.
        """
        tokens, seqs = self.room.get(choice, (0, 0))
        if stats.num_tokens <= tokens and stats.num_seqs <= seqs:
            return True
        if not self.parts.issuperset(pieces(choice)):
            return False
        room = cdiv(min(power_of_two(stats.num_tokens), self.max_tokens), 16) * 16, rounded(stats.num_seqs)
        room = max(room[0], tokens), max(min(room[1], self.max_seqs), seqs)
        return self._place(choice, room, num_bytes, steps=False)

    def _layout(self, choice: Choice, tokens: int, seqs: int) -> scratch.Layout:
        capacity = Capacity(tokens, seqs, self.device, self.max_keys)
        return scratch.Layout.of(self.family.kernel(choice.kernel), self.shape, capacity, choice.config)


def _numbered(device: Any) -> torch.device:
    """The device, with a GPU's number if it was named without. Raises SpecError where there is no such device."""
    try:
        found = torch.empty(0, device=device).device
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise SpecError("device", f"{shown(device)} ({str(error).splitlines()[0]})", "a device of this host") from error
    expect(device is not None and found.type in DEVICES, "device", shown(device), f"one of {', '.join(DEVICES)}")
    return found


def expect_kernel(family: Family, name: object) -> None:
    """Raise SpecError unless the family has a kernel of this name."""
    try:
        known = isinstance(name, str) and hasattr(family.kernel(name), "launch")
    except (ImportError, TypeError, ValueError):
        known = False
    expect(known, "kernel", shown(name), f"None, or a kernel's file: {', '.join(family.kernels)}, ...")
