"""A row for each cell: what was run, how it ended, and the evidence. A row that did not end `ok` cannot hold a time.

Rows live in `cells.jsonl`, one JSON object a line with a checksum at its end; `compare.record.store` writes and reads
it.
"""

import dataclasses
import enum
import functools
import json
import re
import types
import typing
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare.record import plain
from compare.record.fields import ensure_sound
from compare.record.whole import put

# One JSON object a line, read with suspicion: a checksum, no key twice, finite numbers, fields of their types.


_SEAL = ',"check":"'  # last field of a line: CRC-32 of the text before it, 8 hex digits


def seal(text: str) -> str:
    """The JSON object with its checksum as the last field."""
    return f'{text[:-1]}{_SEAL}{zlib.crc32(text[:-1].encode()):08x}"}}'


def parse(line: str) -> tuple[Any, bool]:
    """(the value of a line, whether it has a checksum). Raises ValueError or RecursionError.

    A wrong checksum is an error, and so is what `plain.loads` refuses.
    """
    line = line.strip()
    found = plain.loads(line)
    if not isinstance(found, dict) or found.pop("check", None) is None:
        return found, False
    text, _, _ = line.rpartition(_SEAL)
    if not text or seal(text + "}") != line:
        raise ValueError("check: the line is not the one that was written")
    return found, True


def ensure_typed(value: Any) -> None:
    """Raise ValueError naming the first field of a dataclass, at any depth, whose value has the wrong type."""
    for name, hint in _hints(type(value)).items():
        found = getattr(value, name)
        if not _matches(found, hint):
            shown = f"{found!r:.60}"
            raise ValueError(f"{name}: found {shown}, allowed {getattr(hint, '__name__', hint)}")
        if dataclasses.is_dataclass(found):
            ensure_typed(found)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _matches(value: Any, hint: Any) -> bool:
    """Whether a value has a record's type: plain classes, optional ones, tuples of one type, dicts."""
    if hint is float:  # first: most values of a run are samples
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Any:
        return True
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_matches(value, each) for each in inside)
    if origin is tuple:
        each = inside[:1] * len(value) if inside[-1] is ... and isinstance(value, tuple) else inside
        return isinstance(value, tuple) and len(each) == len(value) and all(map(_matches, value, each))
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(_matches(key, inside[0]) and _matches(item, inside[1]) for key, item in pairs)
    return value in inside if origin is typing.Literal else isinstance(value, origin or hint)


_KERNEL = re.compile(r"[\w./:@+-]{1,200}")  # an id, or package.module:name; pages and commands have it as it is
SCHEMA = 2  # 2 adds `process` and `fingerprint`; rows of schema 1 belong to process 0
READABLE = (1, SCHEMA)
MAX_SAMPLES = 256  # raw samples kept per cell and process: a line stays below a few KB


class Status(enum.StrEnum):
    """How a cell ended."""

    OK = "ok"
    INCORRECT = "incorrect"
    NONDETERMINISTIC = "nondeterministic"
    INVALID_TIMING = "invalid_timing"
    COMPILE_ERROR = "compile_error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OOM = "oom"
    UNSUPPORTED = "unsupported"  # the kernel declares that it does not support this
    UNAVAILABLE = "unavailable"  # an import or a GPU is missing
    TOO_LARGE = "too_large"  # for the CPU's interpreter
    NOT_EXECUTABLE = "not_executable"  # the ISA model does not know an instruction

    @property
    def is_failure(self) -> bool:
        """Whether such a cell makes the run exit with 1."""
        return self not in _NO_FAILURE


_NO_FAILURE = {Status.OK, Status.UNSUPPORTED, Status.UNAVAILABLE, Status.TOO_LARGE, Status.NOT_EXECUTABLE}


class Evidence(enum.StrEnum):
    """The evidence behind an `ok`."""

    MEASURED = "measured"
    CHECKED_ON_GPU = "checked-on-gpu"
    INTERPRETED = "interpreted"
    EXECUTED_IN_MODEL = "executed-in-model"
    COMPILED = "compiled"


@dataclass(frozen=True)
class WorkloadInfo:
    """The workload of a row, as plain values. `kind` is its class: decode, speculative, prefill or mixed.

    `features` holds what differs from plain causal attention, as text ("sliding_window=17"). `kv_bytes` counts each
    distinct K and V byte once; `flops` is exactly twice the multiply-adds of the visible keys.
    """

    id: str
    label: str
    kind: str
    num_seqs: int
    num_tokens: int
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    total_seq_len: int
    num_query_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    dtype: str
    features: tuple[str, ...] = ()
    cache_style: str = "nhd"
    kv_bytes: int = 0
    flops: int = 0
    prompt_seq_len: int | None = None  # None in older logs


@dataclass(frozen=True)
class GateResult:
    """What the checker saw. `worst`: the largest error/budget ratios by name (element, row, lse); above 1 rejects.

    `contract`: what the kernel declares that is weaker than the default precision; empty where nothing is.
    """

    tier: str
    worst: dict[str, float]
    page_sets: int
    value_sets: int
    bit_equal: bool  # two runs over different poison gave the same bits
    contract: str = ""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call, by one process. One sample is the mean over the calls of one replay.

    `samples_us[r]` is round r's; the kernels of one job and process share their rounds, so equal indices are pairs.
    With the paper's timer the one sample and `median_us` are the mean of its launches. `half_width`: of the log-ratio's
    99% interval, paired with `unit` over those rounds. `clocks`: compare.bench.clocks.
    """

    timer: str  # graph | events | paper
    cache: str  # cold | hot
    median_us: float
    p05_us: float
    p95_us: float
    rounds: int
    calls_per_sample: int
    page_sets: int
    cycle_bytes: int  # distinct K and V bytes read before a page is read again
    samples_us: tuple[float, ...] = ()
    noisy: bool = False
    order: str = "interleaved"  # interleaved: rotating and reversed with the other kernels | sequential | alone
    note: str = ""
    clocks: dict[str, Any] = field(default_factory=dict)  # {} where they cannot be read
    unit: str = ""  # the kernel whose rounds decided when to stop
    half_width: float | None = None
    processes: int = (
        1  # above 1 in a cell put together by compare.analysis.cells; low_us and high_us are its 99% interval
    )
    low_us: float | None = None
    high_us: float | None = None


@dataclass(frozen=True)
class Derived:
    """What follows from a time and its workload. `floor_share` = floor_us / median_us. joules: of a call, if
    measured."""

    gbps: float
    tflops: float
    floor_us: float
    floor_share: float
    joules: float | None = None


@dataclass(frozen=True)
class Record:
    """A finished cell of one process. Raises ValueError where a field contradicts the status.

    `process`: the number of the fresh process within the run, from 0. `fingerprint` identifies workload, source,
    config, GPU, software and contract: equal ones are repetitions of one measurement. `config_origin`: "heuristics"
    (the tree for this GPU), "DEFAULT" (the module's), or "given". `facts`: static facts of the compiled code, one dict
    for each kernel of the launch and target. `estimate`: floor, estimate and limiter of an absent GPU
    (compare.static.estimate), never beside a time. `gpu`: the GPU that ran it (None: none did); `seat`: which one of a
    fleet. `seconds`: the cell's wall time, compilation included.
    """

    run_id: str
    cell_id: str
    workload: WorkloadInfo
    kernel: str
    status: Status
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    log_tail: str = ""
    command: str = ""
    config: dict[str, Any] | None = None
    config_origin: str = ""
    gpu: str | None = None
    timing: Timing | None = None
    derived: Derived | None = None
    gate: GateResult | None = None
    facts: tuple[dict[str, Any], ...] = ()
    estimate: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    source_sha: str = ""
    seconds: float = 0.0
    process: int = 0
    fingerprint: str = ""
    schema: int = SCHEMA
    seat: str = ""

    def __post_init__(self) -> None:
        for name in ("reason", "log_tail", "command"):  # a kernel's words may hold lone surrogates
            if isinstance(text := getattr(self, name), str):
                object.__setattr__(self, name, plain.writable(text))
        timed = [name for name in ("timing", "derived") if getattr(self, name) is not None]
        if timed and self.status is not Status.OK:
            raise ValueError(f"{timed[0]}: found a time, allowed None where status is {self.status}")
        if (self.timing is not None) != (Evidence.MEASURED in self.evidence):
            raise ValueError(f"evidence: found {list(self.evidence)}, allowed `measured` exactly where there is a time")
        if self.status is Status.OK and not self.evidence:
            raise ValueError("evidence: found nothing, allowed at least one kind where status is ok")
        if self.status is not Status.OK and not self.reason:
            raise ValueError(f"reason: found nothing, allowed a text where status is {self.status}")
        if self.timing is not None and not 0.0 < self.timing.median_us < float("inf"):
            raise ValueError(f"timing.median_us: found {self.timing.median_us}, allowed a finite number above 0")
        if self.timing is not None and self.estimate is not None:
            raise ValueError("estimate: found one beside a time, allowed None where a GPU measured")
        if isinstance(self.kernel, str) and not _KERNEL.fullmatch(self.kernel):
            raise ValueError(f"kernel: found {self.kernel!r:.60}, allowed letters, digits and any of _ . / : @ + -")
        if self.process < 0:
            raise ValueError(f"process: found {self.process}, allowed 0 or more")
        if self.timing is not None and len(self.timing.samples_us) > MAX_SAMPLES:
            raise ValueError(f"timing.samples_us: found {len(self.timing.samples_us)}, allowed at most {MAX_SAMPLES}")

    def replace(self, **changes: Any) -> "Record":
        return dataclasses.replace(self, **changes)

    def to_json(self) -> str:
        """One line. NaN and infinity are refused (ValueError): nothing encodes "failed" as NaN."""
        plain = dataclasses.asdict(self)
        if not self.seat:  # omitted for one machine, as earlier versions write it
            del plain["seat"]
        return seal(json.dumps(plain, allow_nan=False, separators=(",", ":")))

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """The inverse of `to_json`. Raises ValueError, KeyError, TypeError or RecursionError for anything else."""
        raw, sealed = parse(line)
        if not isinstance(raw, dict) or raw.get("schema") not in READABLE:
            found = raw.get("schema") if isinstance(raw, dict) else raw
            raise ValueError(f"schema: found {found!r:.60}, allowed {' or '.join(map(str, READABLE))}")
        if not sealed and raw["schema"] != 1:  # schema 1 had no checksums
            raise ValueError("check: found no checksum")
        record = cls.from_plain(raw)
        ensure_typed(record)
        ensure_sound(record)
        return record

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Record":
        """From dicts, lists and texts; fields with defaults may be missing. Raises ValueError, KeyError or
        TypeError."""
        raw = dict(plain)
        raw.pop("search", None)  # null in rows of earlier versions
        raw["workload"] = WorkloadInfo(**raw["workload"] | {"features": tuple(raw["workload"]["features"])})
        raw["status"] = Status(raw["status"])
        raw["evidence"] = tuple(Evidence(e) for e in raw.get("evidence", ()))
        raw["facts"] = tuple(raw.get("facts", ()))
        for name, kind in (("timing", Timing), ("derived", Derived), ("gate", GateResult)):
            if raw.get(name) is not None:
                raw[name] = kind(**raw[name])
        if raw.get("timing") is not None:
            raw["timing"] = dataclasses.replace(raw["timing"], samples_us=tuple(raw["timing"].samples_us))
        return cls(**raw)


def latest(records: list[Record]) -> list[Record]:
    """The last record of each cell and process, in the order in which they first appeared."""
    by_cell: dict[tuple[str, int], Record] = {}
    for record in records:
        by_cell[record.cell_id, record.process] = record
    return list(by_cell.values())


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write manifest.json, whole or not at all. Raises CannotWrite."""
    put(path, json.dumps(manifest, indent=1, allow_nan=False, default=str))
