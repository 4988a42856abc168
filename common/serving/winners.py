"""Measured winners: the fastest kernel and config for a batch's key, found by the tuner or a warm-up, one line each.

A winner names a kernel and every field of its Config. Its key is the shape and the batch's host integers, rounded to
`grid.KEYS`, so that a slightly larger batch finds it too. It counts only while the kernel's code is that which was
timed. A file holds one DSL, GPU and set of versions. A line is appended by one write, so processes may share a file;
the last line of a key counts. Nothing in a file is executed. DIPTYCH_CACHE names another folder, or 0 for none.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from common.gpus import Gpu
from common.serving.grid import EIGHTHS, decided_by, few_keys, mixed
from common.serving.whole import is_ours
from common.spec import AttentionShape
from common.spec.metadata import BatchStats, cdiv
from common.versions import NEEDS, here

FOLDER = "DIPTYCH_CACHE"
WORTH = 1.02  # speed-up that a winner needs: two timings of one code differ by 1%
MOST_BYTES = 2**26  # of a file that is read
SIZES = 5  # of a key, before its numbers of keys


@dataclass(frozen=True)
class Timed:
    """A choice and its time. us: None where the launch failed or the output differed; `why` has the reason."""

    choice: Any
    us: float | None
    why: str = ""


def best(timed: list[Timed]) -> Timed | None:
    """Return the fastest candidate; the first one if no other is faster by WORTH; None if nothing was timed."""
    done = [one for one in timed if one.us is not None]
    if not done:
        return None
    least = min(done, key=lambda one: one.us)
    return done[0] if done[0] is timed[0] and done[0].us < WORTH * least.us else least


@dataclass(frozen=True)
class Winner:
    """One winner.

    of: for whom it was chosen: `auto`, `native.auto` or a kernel's name. config: plain values of the kernel's Config.
    us: its time. first_us: the time of the choice without it. stamp: hash of the kernel's code (stamps.py).
    row: the batch that was timed, in words.
    """

    key: str
    of: str
    kernel: str
    config: dict[str, Any]
    us: float
    first_us: float
    stamp: str
    row: str

    def __str__(self) -> str:
        gain = f", {self.us:.1f} us, without it {self.first_us:.1f}" if self.us < self.first_us else ""
        return f"measured on {self.row}{gain}"

    @classmethod
    def of_plain(cls, plain: Any) -> "Winner":
        """Make a winner of a parsed line. Raises ValueError if it is not one."""
        kinds = {"config": dict, "us": (int, float), "first_us": (int, float)}
        names = [one.name for one in fields(cls)]
        if not isinstance(plain, dict) or plain.keys() != set(names):
            raise ValueError(f"found no line with {', '.join(names)}")
        if bad := [name for name in names if not isinstance(plain[name], kinds.get(name, str))]:
            raise ValueError(f"{bad[0]}: found {plain[bad[0]]!r:.60}")
        stats_of(plain["key"])
        return cls(**plain)


@lru_cache
def sizes(shape: AttentionShape) -> str:
    """`32:8:128 16 bfloat16 bfloat16`: heads, page, dtypes of the query and of the cache."""
    heads = f"{shape.num_query_heads}:{shape.num_kv_heads}:{shape.head_size}"
    heads = heads if shape.value_size is None else f"{heads}:{shape.value_size}"
    dtypes = " ".join(str(dtype).removeprefix("torch.") for dtype in (shape.dtype, shape.cache_dtype))
    return f"{heads} {shape.block_size} {dtypes}"


def _sizes_of(key: str) -> str:
    return key.partition(" | ")[0]


def key(shape: AttentionShape, stats: BatchStats) -> str:
    """`32:8:128 16 bfloat16 bfloat16 | 8 8 8 1 2048 6`: sequences, tokens, decodes, longest query, keys, and all keys
    in eighths of num_seqs * longest; `| 8 520 6 514 2048 1024 768`: the keys of a decode and of a prompt on the mean,
    where both are in the batch."""
    told = decided_by(stats)
    decodes, prompts = (n and few_keys(n) for n in (told.num_decodes, told.prompts))
    counts = decodes + prompts, few_keys(told.num_tokens), decodes, few_keys(told.max_query_len), told.max_seq_len
    if told.prompt_seq_len is None:
        keys = [cdiv(EIGHTHS * told.total_seq_len, told.num_seqs * told.max_seq_len)]
    else:
        keys = [few_keys(told.keys_of_decodes // told.num_decodes), few_keys(cdiv(told.prompt_seq_len, told.prompts))]
    return f"{sizes(shape)} | {' '.join(map(str, (*counts, *keys)))}"


def stats_of(at: str) -> BatchStats:
    """The sizes of a key. Raises ValueError for malformed text."""
    counts, told = (found := [int(n) for n in at.partition(" | ")[2].split()])[:SIZES], found[SIZES:]
    if len(counts) < SIZES or len(told) not in (1, 2):
        raise ValueError(f"key: found {at!r:.80}, allowed sizes of a batch")
    stats = BatchStats(*counts, counts[0] * counts[-1] * told[0] // EIGHTHS)
    stats = stats if len(told) == 1 else mixed(stats, *told)
    most = stats.total_seq_len if len(told) == 1 else stats.num_decodes + stats.prompt_seq_len
    return replace(stats, num_tokens=min(stats.num_tokens, most))  # no more than keys, for both were rounded up


def built(like: Any, plain: Mapping[str, Any], older: bool = False) -> Any:
    """Build a Config of the type of `like` from plain values. older: missing fields take the value of `like`.

    Raises ValueError for a missing or unknown field, or a value of another type than in `like`.
    """
    names = {field.name for field in fields(like)}
    if not plain.keys() <= names or (plain.keys() != names and not older):
        raise ValueError(f"found the fields {sorted(plain)} of a {type(like).__name__}, allowed {sorted(names)}")
    made = {}
    for name, value in plain.items():
        other = getattr(like, name)
        if is_dataclass(other) and isinstance(value, Mapping):
            made[name] = built(other, value, older)
        elif _is_like(value, other):
            made[name] = value
        else:
            raise ValueError(f"{name}: found {value!r:.40}, allowed what is like {other!r:.40}")
    return replace(like, **made)


def _is_like(value: Any, other: Any) -> bool:
    """Whether a value may replace another in a Config: numbers of at least 0 and texts among each other; None for any
    value except a part of a Config."""
    if is_dataclass(other) or isinstance(value, Mapping):
        return False
    if isinstance(value, int | float) and (other is None or isinstance(other, int | float)):
        return value >= 0
    return value is None or other is None or isinstance(value, type(other))


def folder() -> Path | None:
    """The folder of measured winners; None if DIPTYCH_CACHE is 0."""
    said = os.environ.get(FOLDER)
    if said == "0":
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~"), ".cache")
    return Path(said or Path(cache) / "diptych") / "winners"


def path(dsl: str, gpu: Gpu) -> Path | None:
    """`triton-h200-torch2.11.0-triton3.6.0.jsonl` in `folder`; None without a folder."""
    versions = "-".join(f"{package}{here(package)}" for package in dict.fromkeys(("torch", *NEEDS.get(dsl, ()))))
    found = folder()
    return found and found / (re.sub(r"[^\w.+-]", "_", f"{dsl}-{gpu.name}-{versions}") + ".jsonl")


class Winners:
    """The winners of one DSL on one GPU: those shipped with the project, then those of the user's file. The code of
    those that are shipped is compared where their shape is asked for.

    stale: kernels whose code has changed since the user timed them. unread: lines that are no winners.
    """

    def __init__(self, file: Path | None, shipped: Iterable[Any], stamp: Callable[[str], str]) -> None:
        """shipped: plain values. stamp: gives the hash of a kernel's code, empty for an unknown kernel. Raises OSError
        for a file that cannot be read, ValueError for one that others may write to or that is too large."""
        self._file, self._stamp = file, stamp
        self._known: dict[tuple[str, str], Winner] = {}
        self._shipped: dict[str, list[Winner]] = {}  # by shape, not compared yet; the last of a key first
        self.unread, stale = 0, set()
        for mine, plain in [*((False, one) for one in shipped), *((True, line) for line in self._lines())]:
            try:
                one = Winner.of_plain(json.loads(plain) if mine else plain)
            except (ValueError, TypeError, RecursionError):
                self.unread += 1
                continue
            if not mine:
                self._shipped.setdefault(_sizes_of(one.key), []).insert(0, one)
            elif one.stamp == stamp(one.kernel):
                self._known[one.of, one.key] = one
            else:
                stale.add(one.kernel)
        self.stale = tuple(sorted(stale))

    def _compare(self, *shapes: str) -> None:
        """Take the shipped winners of these shapes whose code is as it was; the user's own come first."""
        for one in [one for shape in shapes for one in self._shipped.pop(shape, ())]:
            if one.stamp == self._stamp(one.kernel):
                self._known.setdefault((one.of, one.key), one)

    def _lines(self) -> Iterable[bytes]:
        if self._file is None or not self._file.exists():
            return ()
        found = self._file.stat()
        if not is_ours(found):
            raise ValueError("somebody else may write to it")
        if found.st_size > MOST_BYTES:
            raise ValueError(f"found {found.st_size} bytes, allowed {MOST_BYTES}")
        return filter(bytes.strip, self._file.read_bytes().split(b"\n"))

    @property
    def where(self) -> str:
        """Where the user's winners lie."""
        return "winners of this process" if self._file is None else str(self._file)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Winner]:
        self._compare(*self._shipped)
        return iter(self._known.values())

    def has(self, shape: AttentionShape) -> bool:
        """Whether any batch of a shape has a winner."""
        self._compare(sizes(shape))
        return any(_sizes_of(at) == sizes(shape) for _, at in self._known)

    def find(self, of: str, shape: AttentionShape, stats: BatchStats) -> Winner | None:
        """The winner of a batch's key."""
        self._compare(sizes(shape))
        return self._known.get((of, key(shape, stats))) if self._known else None

    def stats(self, of: str, shape: AttentionShape) -> Iterator[BatchStats]:
        """The sizes of a shape's winners, which a plan compiles ahead beside the grid's."""
        self._compare(sizes(shape))
        for asked, at in self._known:
            if asked == of and _sizes_of(at) == sizes(shape):
                yield stats_of(at)

    def drop(self, winner: Winner) -> None:
        """Drop a winner whose config cannot be built."""
        self._known.pop((winner.of, winner.key), None)

    def keep(self, of: str, shape: AttentionShape, stats: BatchStats, **told: Any) -> Winner:
        """Append a winner; told: Winner's other fields. Raises OSError where it cannot be written: it then counts in
        this process only."""
        found = Winner(key=key(shape, stats), of=of, stamp=self._stamp(told["kernel"]), **told)
        self._known[of, found.key] = found
        if self._file is not None:
            append(self._file, found)
        return found


def append(file: Path, *winners: Winner) -> None:
    """Append lines to a file by one write. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = "".join("\n" + json.dumps(asdict(one)) for one in winners) + "\n"  # a torn line before it ends here
    to = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(to, text.encode())
    finally:
        os.close(to)
