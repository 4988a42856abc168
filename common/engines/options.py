"""The settings of an adapter: environment variables, read once when an engine starts."""

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from common import interpreter
from common.process import cores
from common.serving import pack
from common.serving.whole import triton_cache
from common.spec import SpecError
from common.versions import SAID, ensure

DEFAULT, PORTABLE = "triton/native.auto", "triton/auto"  # the default kernel, and that of a portable engine
WARM = ("served", "all", "none")
WRITERS = ("diptych", "engine")
MOST_CHILDREN, DEFAULT_CHILDREN = 256, 16  # each imports torch, which takes some 500 MB
LEAST_CORES = 8  # of a GPU, for children by default: with fewer they take the cores that load the weights
VARIABLES = tuple(
    f"DIPTYCH_{name}"
    for name in ("KERNEL", "TYPICAL_SEQ_LEN", "WARM", "WRITER", "PORTABLE", "MEASURE", "PACK", "CHILDREN")
)
OTHERS = ("DIPTYCH_CACHE", "DIPTYCH_HELION_CACHE", "DIPTYCH_COMMIT", "DIPTYCH_FLEET_PRETEND", SAID)  # not an engine's
_ROOT = __name__.removesuffix("common.engines.options")  # the namespace that the project is installed under
_FAMILIES = {"triton": "dsl_triton", "helion": "dsl_helion"}
log = logging.getLogger("diptych.engines")
_PLANNERS = ("auto", "native.auto")  # modules that choose by themselves


@dataclass(frozen=True)
class Kernel:
    """A kernel id as adapters use it: `triton/auto`, `triton/native.auto`, `helion/static_grid`, ...

    module: has `plan_paged_attention` and `paged_attention`. name: the kernel for all batches; None where the module
    chooses.
    """

    id: str
    module: Any = field(compare=False, repr=False)
    name: str | None

    @property
    def family(self) -> Any:
        return self.module.FAMILY

    @property
    def supports(self) -> frozenset[str]:
        return self.module.SUPPORTS if self.name is None else self.family.kernel(self.name).SUPPORTS


def kernel_of(kernel_id: str) -> Kernel:
    """The kernel of an id, with its DSL imported. Raises SpecError for an unknown id, or where no GPU is here and
    triton was imported too early to interpret; Unsuitable where its DSL is missing."""
    dsl, _, name = kernel_id.partition("/")
    if dsl not in _FAMILIES or not all(map(str.isidentifier, name.split("."))):
        raise SpecError("DIPTYCH_KERNEL", repr(kernel_id), "triton/KERNEL or helion/KERNEL, as triton/auto")
    ensure(dsl)
    _ensure_runs()
    planner = name if name in _PLANNERS else "auto"
    try:
        with interpreter.light_import():  # an engine searches no configs of Helion
            module = import_module(f"{_ROOT}{_FAMILIES[dsl]}.{planner}")
        kernel = Kernel(kernel_id, module, None if name in _PLANNERS else name)
        named = kernel.name and module.FAMILY.kernel(kernel.name)
        known = not named or (hasattr(named, "launch") and hasattr(named, "SUPPORTS"))  # cache.py has a launch too
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith((_ROOT + _FAMILIES[dsl], _FAMILIES[dsl])):
            raise
        known = False
    if not known:
        planners = [one for one in _PLANNERS if dsl == "triton" or not one.startswith("native")]
        rungs = ", ".join(planners) + ", q_block, parallel_softmax, adjustable_tile, static_grid, split, unpaged"
        raise SpecError("DIPTYCH_KERNEL", repr(kernel_id), f"a kernel of {_FAMILIES[dsl]}: {rungs}")
    return kernel


def _ensure_runs() -> None:
    """Interpret where there is no GPU, with the interpreter's repairs: without them bf16 results are silently wrong.
    Raises SpecError where kernels can neither be compiled nor interpreted."""
    if "TRITON_INTERPRET" not in os.environ and "triton" in sys.modules and not torch.cuda.device_count():
        found = "unset where no GPU is here and triton is imported already"
    elif not interpreter.begin() and not torch.cuda.device_count():
        found = f"{os.environ['TRITON_INTERPRET']} where no GPU is here"
    else:
        return
    raise SpecError("TRITON_INTERPRET", found, "a GPU; or TRITON_INTERPRET=1, set before triton is imported")


@dataclass(frozen=True)
class Options:
    """The settings. Raises SpecError.

    kernel: DIPTYCH_KERNEL. typical_seq_len: DIPTYCH_TYPICAL_SEQ_LEN, the length that captured graphs are chosen for;
    None: the adapter's default. warm: DIPTYCH_WARM, what to compile before the first request: `served` (every step
    within the engine's limits), `all` (also prompts that bring no K and V), `none`, or a number: decodes of up to so
    many sequences. writer: DIPTYCH_WRITER, who writes K and V into pages, `diptych` or `engine`. portable:
    DIPTYCH_PORTABLE=1 refuses native kernels and makes PORTABLE the default. measure: DIPTYCH_MEASURE, how many
    candidates to time for typical batches before the first request (Plan.measure); 0: none. pack: DIPTYCH_PACK, a file
    of compiled code (common/serving/pack.py). children: DIPTYCH_CHILDREN, how many processes compile while the engine
    loads its weights (common/serving/ahead.py); by default as `default_children` says.
    """

    kernel: str = DEFAULT
    typical_seq_len: int | None = None
    warm: str = "served"
    writer: str = "diptych"
    portable: bool = False
    measure: int = 0
    pack: str = ""
    children: int = 0

    def __post_init__(self) -> None:
        if self.warm not in WARM and not (self.warm.isascii() and self.warm.isdecimal()):
            raise SpecError("DIPTYCH_WARM", f"{self.warm!r:.60}", f"{', '.join(WARM)}, or a number of sequences")
        if self.writer not in WRITERS:
            raise SpecError("DIPTYCH_WRITER", repr(self.writer), " or ".join(WRITERS))
        if self.portable and ".native" in f".{self.kernel.partition('/')[2]}":
            raise SpecError("DIPTYCH_KERNEL", f"{self.kernel} beside DIPTYCH_PORTABLE=1", "a kernel that is portable")

    def unpack(self, device: torch.device) -> None:
        """Put the code of `pack` where Triton looks for it. Raises SpecError for a file that is damaged, or of another
        GPU, version or source, and where there is no GPU."""
        if self.pack:
            count = pack.unpack(Path(self.pack), triton_cache(), pack.made_with(device))
            log.info("%s: %d files of compiled code were new", self.pack, count)

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> "Options":
        """The settings in the environment; warns of a misspelt variable. Raises SpecError naming the variable."""
        given = os.environ if environment is None else environment
        for name in given:
            if name.startswith("DIPTYCH_") and name not in (*VARIABLES, *OTHERS):
                _misspelt(name)
        if (portable := given.get("DIPTYCH_PORTABLE", "0")) not in ("", "0", "1"):
            raise SpecError("DIPTYCH_PORTABLE", f"{portable!r:.60}", "0 or 1")
        return cls(
            given.get("DIPTYCH_KERNEL", PORTABLE if portable == "1" else DEFAULT),
            _number(given, "DIPTYCH_TYPICAL_SEQ_LEN", "tokens", 1) or None,
            given.get("DIPTYCH_WARM", "served"),
            given.get("DIPTYCH_WRITER", "diptych"),
            portable == "1",
            _number(given, "DIPTYCH_MEASURE", "candidates"),
            given.get("DIPTYCH_PACK", ""),
            _number(given, "DIPTYCH_CHILDREN", "processes", most=MOST_CHILDREN)
            if "DIPTYCH_CHILDREN" in given
            else default_children(),
        )


def default_children() -> int:
    """All cores of a GPU but two; none where it has fewer than LEAST_CORES."""
    share = cores() // max(torch.cuda.device_count(), 1)
    return min(share - 2, DEFAULT_CHILDREN) if share >= LEAST_CORES else 0


@cache
def _misspelt(name: str) -> None:
    """Warn once."""
    meant = ", ".join(get_close_matches(name, VARIABLES) or VARIABLES)
    log.warning("environment: found %s, which nothing reads, allowed %s", name, meant)


def _number(given: Mapping[str, str], name: str, of: str, least: int = 0, most: int = 2**31 - 1) -> int:
    """The number in a variable, 0 where it is not set. Raises SpecError."""
    text = given.get(name)
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal() and least <= int(text[:20]) <= most):
        raise SpecError(name, f"{text!r:.60}", f"a number of {of}, from {least} to {most}")
    return int(text)
