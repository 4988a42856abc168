"""What flashinfer-bench's files say of paged attention: Definitions, Workloads and Solutions, read and written.

The layout is flashinfer-bench 0.1.2's (Apache-2.0): definitions/ and solutions/ hold a JSON object a file, workloads/
and traces/ one a line, blob/ the page lists. Its package is not imported, for it needs flashinfer-python and CUDA.
Readers raise SpecError naming the field, what was found and what is allowed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from common.kit import levels
from common.spec import AttentionShape, SpecError
from common.spec.metadata import cdiv, lens_of
from common.spec.paged_batch import DTYPES
from compare.workloads import Workload

OP_TYPE = "gqa_paged"
SLOTS = 8  # of a page of our rows, where a Definition's pages have one token each
CONSTANT = ("num_qo_heads", "num_kv_heads", "head_dim", "page_size")  # axes; a Workload has the others
DRAWN = ("q", "k_cache", "v_cache")
LISTS = {"qo_indptr": "len_indptr", "kv_indptr": "len_indptr", "kv_indices": "num_kv_indices"}
LISTS |= {"kv_last_page_len": "batch_size"}  # input -> its axis
LONGEST_NAME = 200  # bytes of a file's, beside what is put behind it
LANGUAGES = ("python", "triton", "tilelang")  # whose sources Python imports
_SEED = "@seed="  # behind a row's label, in a Workload's uuid
_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def get(of: str, plain: Any, name: str, *kinds: type) -> Any:
    """A field of a JSON object, of one of these types. of: what the object is, for the error."""
    found = plain.get(name) if isinstance(plain, dict) else plain
    if not isinstance(plain, dict) or not isinstance(found, kinds) or isinstance(found, bool):
        told = f"{found!r:.60}" if not isinstance(plain, dict) or name in plain else f"no {name}"
        raise SpecError(f"{of}, {name}", told, " or ".join(one.__name__ for one in kinds))
    if isinstance(found, int) and not -(2**63) <= found < 2**63:
        raise SpecError(f"{of}, {name}", "an integer of more than 64 bits", "one of 64")
    return found


def objects(folder: Path, pattern: str) -> Iterator[Any]:
    """The JSON objects of the files below a folder: of a `*.json` its one, of a `*.jsonl` one a line."""
    for path in sorted(folder.rglob(pattern)):
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, part in enumerate(text.splitlines() if path.suffix == ".jsonl" else [text], 1):
            try:
                yield json.loads(part)
            except (ValueError, RecursionError) as error:
                raise SpecError(str(path), f"{error!s:.80} in object {number}", "JSON") from error


@dataclass(frozen=True)
class Definition:
    """Paged attention of one shape. page: tokens of a page, 1 or the shape's block size. inputs: in the order of a
    call. reference: Python text with a function `run`."""

    name: str
    shape: AttentionShape
    page: int
    inputs: tuple[str, ...]
    reference: str

    @property
    def decode(self) -> bool:
        """Whether each sequence has one query token."""
        return "qo_indptr" not in self.inputs

    @cached_property
    def variable(self) -> tuple[str, ...]:
        """The axes whose sizes a Workload has."""
        tokens = ("batch_size",) if self.decode else ("total_q", *["batch_size"] * (self.page > 1))
        return (*tokens, "num_pages", "len_indptr", "num_kv_indices")

    @cached_property
    def specs(self) -> dict[str, dict[str, Any]]:
        """Axes and dtype of each input and output, as the layout has them."""
        rows, cache = (
            [self.variable[0], "num_qo_heads", "head_dim"],
            ["num_pages", "page_size", "num_kv_heads", "head_dim"],
        )
        shapes = {"q": rows, "k_cache": cache, "v_cache": cache, "output": rows}
        told = {name: {"shape": shape, "dtype": _named(self.shape.dtype)} for name, shape in shapes.items()}
        told |= {name: {"shape": [axis], "dtype": "int32"} for name, axis in LISTS.items()}
        told |= {"lse": {"shape": rows[:2], "dtype": "float32"}, "sm_scale": {"shape": None, "dtype": "float32"}}
        return told

    @classmethod
    def of_shape(cls, shape: AttentionShape, decode: bool) -> "Definition":
        """Under flashinfer-bench's name for it. Raises SpecError for what the layout cannot say."""
        if shape.dtype not in DTYPES or shape.cache_dtype != shape.dtype or shape.value_size is not None:
            raise SpecError("shape", shape, f"K and V in the query's dtype and size, of {', '.join(_NAMES)}")
        sizes = f"h{shape.num_query_heads}_kv{shape.num_kv_heads}_d{shape.head_size}_ps{shape.block_size}"
        name = f"gqa_paged_{'decode' if decode else 'prefill_causal'}_{sizes}"
        name += f"_{_named(shape.dtype)}" if shape.dtype != torch.bfloat16 else ""
        inputs = (*DRAWN, *(one for one in LISTS if one != "qo_indptr" or not decode), "sm_scale")
        return cls(name, shape, shape.block_size, inputs, _reference(inputs))

    @classmethod
    def of(cls, plain: Any) -> "Definition":
        """From a JSON object."""
        of = f"definition {get('definition', plain, 'name', str):.60}"
        if len(PurePosixPath(inside(f"{of}, name", plain["name"])).parts) > 1:  # files of it have its name
            raise SpecError(f"{of}, name", repr(plain["name"]), "a name without /")
        if (found := get(of, plain, "op_type", str)) != OP_TYPE:
            raise SpecError(f"{of}, op_type", repr(found), OP_TYPE)
        axes, inputs = get(of, plain, "axes", dict), get(of, plain, "inputs", dict)
        *sizes, page = (get(f"{of}, {a}", get(f"{of}, axes", axes, a, dict), "value", int) for a in CONSTANT)
        dtype = get(f"{of}, q", get(f"{of}, inputs", inputs, "q", dict), "dtype", str)
        if dtype not in _NAMES:
            raise SpecError(f"{of}, q, dtype", repr(dtype), ", ".join(_NAMES))
        shape = AttentionShape(*sizes, SLOTS if page == 1 else page, _NAMES[dtype])
        made = cls(plain["name"], shape, page, tuple(inputs), get(of, plain, "reference", str))
        lists = [
            one
            for one in LISTS
            if one in ("kv_indptr", "kv_indices") or one in inputs or (page > 1 and one != "qo_indptr")
        ]
        for part, wanted in (("inputs", [*DRAWN, *lists, "sm_scale"]), ("outputs", ["output", "lse"])):
            given = get(of, plain, part, dict)
            if sorted(given) != sorted(wanted):
                raise SpecError(f"{of}, {part}", ", ".join(given), ", ".join(wanted))
            for name, told in given.items():
                for field, allowed in made.specs[name].items():
                    if (found := get(f"{of}, {name}", told, field, object)) != allowed:
                        raise SpecError(f"{of}, {name}, {field}", found, str(allowed))
        return made

    def to_dict(self) -> dict[str, Any]:
        sizes = (self.shape.num_query_heads, self.shape.num_kv_heads, self.shape.head_size, self.page)
        axes = {name: {"type": "const", "value": size} for name, size in zip(CONSTANT, sizes, strict=True)}
        told = {"name": self.name, "op_type": OP_TYPE, "description": "Causal; the LSE has base 2."}
        told |= {"axes": {name: {"type": "var"} for name in self.variable} | axes}
        told |= {"inputs": {name: self.specs[name] for name in self.inputs}}
        return told | {"outputs": {n: self.specs[n] for n in ("output", "lse")}, "reference": self.reference}


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reference(inputs: tuple[str, ...]) -> str:
    """Attention in float64, sequence by sequence, as the text of a Definition."""
    starts = "qo_indptr.tolist()" if "qo_indptr" in inputs else "range(len(q) + 1)"
    return f"""import math

import torch


def run({", ".join(inputs)}):
    page, group, starts = k_cache.shape[1], q.shape[1] // k_cache.shape[2], {starts}
    output, lse = torch.zeros_like(q), torch.full(q.shape[:2], -math.inf, device=q.device)
    for i, pages in enumerate(kv_indptr.diff().tolist()):
        if pages == 0:
            continue
        listed = kv_indices[kv_indptr[i]:kv_indptr[i + 1]].long()
        keys, rows = (pages - 1) * page + int(kv_last_page_len[i]), slice(starts[i], starts[i + 1])
        k, v = (c[listed].flatten(0, 1)[:keys].repeat_interleave(group, 1).double() for c in (k_cache, v_cache))
        logits = torch.einsum("qhd,khd->hqk", q[rows].double(), k) * sm_scale
        last = torch.arange(keys - logits.shape[1], keys, device=q.device)
        logits.masked_fill_(torch.arange(keys, device=q.device) > last[:, None], -math.inf)
        lse[rows] = (logits.logsumexp(-1) / math.log(2.0)).t().float()
        output[rows] = torch.einsum("hqk,khd->qhd", logits.softmax(-1).nan_to_num(0.0), v).to(q.dtype)
    return output, lse
"""


@dataclass(frozen=True)
class Row:
    """A Workload of a Definition as a row of ours. scale: of the softmax."""

    definition: Definition
    workload: Workload
    scale: float

    @property
    def uuid(self) -> str:
        return self.workload.label + (f"{_SEED}{self.workload.seed}" if self.workload.seed else "")

    @property
    def case(self) -> str:
        """The kit's expression for it."""
        row, shape = self.workload, self.workload.shape
        sizes = {"head_size": shape.head_size, "block_size": shape.block_size, "dtype": shape.dtype}
        base = levels.BY_NAME["batch-1"].but(lens=row.lens, heads=(shape.num_query_heads, shape.num_kv_heads), **sizes)
        return levels.write(base.but(shared_pages=row.shared_pages, softmax_scale=self.scale))

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> "Row":
        """From a workload of a manifest. Raises SpecError for a row that asks what the layout has no field for."""
        try:
            row = Workload.from_dict({name: value for name, value in plain.items() if name not in ("id", "kind")})
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError("run", f"a row with {error!s:.60}", "one that this version wrote") from error
        if beyond := [*row.asked, *[f"cache style {row.style}"] * (row.style != "nhd")]:
            raise SpecError(f"row {row.label}", ", ".join(beyond), "plain causal attention over contiguous pages")
        definition = Definition.of_shape(row.shape, all(query_len == 1 for query_len, _ in row.lens))
        return cls(definition, row, row.shape.head_size**-0.5)

    def stored(self, root: Path) -> dict[str, Any]:
        """Its line of workloads/; the page lists, of the row's own pages, are written below `root`."""
        batch, page = self.workload.batches(1, "cpu", fill=False)[0], self.workload.shape.block_size
        counts = [cdiv(seq_len, page) for seq_len in batch.seq_lens.tolist()]
        pages = [batch.block_table[i, :count] for i, count in enumerate(counts)]
        lists = {
            "qo_indptr": batch.query_start_loc.clone(),
            "kv_indptr": torch.tensor([0, *counts]).cumsum(0).int(),
            "kv_indices": torch.cat([*pages, batch.block_table.new_empty(0)]),
            "kv_last_page_len": torch.where(batch.seq_lens > 0, (batch.seq_lens - 1) % page + 1, 0).int(),
        }
        sizes = {"total_q": batch.num_tokens, "num_pages": len(batch.key_cache)}
        sizes |= {axis: len(lists[name]) for name, axis in LISTS.items()}
        blob = Path("blob", "workloads", OP_TYPE, self.definition.name, f"{self.workload.id}.safetensors")
        (root / blob).parent.mkdir(parents=True, exist_ok=True)
        _safetensors().save_file({name: lists[name] for name in self.definition.inputs if name in LISTS}, root / blob)
        told: dict[str, Any] = {name: {"type": "random"} for name in DRAWN}
        told |= {name: {"type": "safetensors", "path": blob.as_posix(), "tensor_key": name} for name in LISTS}
        told |= {"sm_scale": {"type": "scalar", "value": self.scale}}
        axes = {name: sizes[name] for name in self.definition.variable}
        workload = {"uuid": self.uuid, "axes": axes, "inputs": {name: told[name] for name in self.definition.inputs}}
        return {"definition": self.definition.name, "solution": None, "workload": workload, "evaluation": None}

    @classmethod
    def of(cls, definition: Definition, plain: Any, root: Path) -> "Row":
        """From a Trace's workload, whose files lie below `root`."""
        uuid = get("workload", plain, "uuid", str)
        of = f"workload {uuid}"
        axes, inputs = get(of, plain, "axes", dict), get(of, plain, "inputs", dict)
        if "len_indptr" in axes and not definition.decode:  # some Definitions of prefills do not declare batch_size
            axes = {"batch_size": get(f"{of}, axes", axes, "len_indptr", int) - 1} | axes
        sizes = {name: get(f"{of}, axes", axes, name, int) for name in definition.variable}
        for name in DRAWN:
            if (kind := get(f"{of}, {name}", get(f"{of}, inputs", inputs, name, dict), "type", str)) != "random":
                raise SpecError(f"{of}, {name}", kind, "random: the checker draws the values")
        lists = {
            name: _list(f"{of}, {name}", inputs.get(name), sizes[LISTS[name]], root)
            for name in LISTS
            if name in definition.inputs
        }
        scale = get(f"{of}, sm_scale", inputs.get("sm_scale"), "value", float, int)
        lens = _lens(of, lists, sizes, definition)
        label, _, seed = uuid.rpartition(_SEED) if uuid.rpartition(_SEED)[2].isdecimal() else (uuid, "", "0")
        shared = _shared(lists, lens, definition)
        row = Workload(label or uuid, lens, definition.shape, shared_pages=shared, seed=int(seed))
        made = cls(definition, row, float(scale))
        levels.read(made.case)  # raises SpecError for one that is too large
        return made


def _safetensors() -> Any:
    try:
        import safetensors.torch as library
    except ImportError as error:
        raise SpecError("safetensors", "no module", "the package: pip install safetensors") from error
    return library


def _list(of: str, told: Any, size: int, root: Path) -> Tensor:
    """int32 [size]: a page list, from its file."""
    if (kind := get(of, told, "type", str)) != "safetensors":
        raise SpecError(of, kind, "safetensors: page lists cannot be drawn")
    library, path, key = _safetensors(), inside(of, get(of, told, "path", str)), get(of, told, "tensor_key", str)
    try:
        found = library.load_file(root / path)[key]
    except Exception as error:  # the library's own is no ValueError
        raise SpecError(f"{of}, path", f"{path}: {type(error).__name__} {error!s:.60}", f"a file with {key}") from error
    if found.dtype != torch.int32 or tuple(found.shape) != (size,):
        raise SpecError(of, f"{found.dtype} {tuple(found.shape)}", f"torch.int32 {(size,)}")
    return found


def inside(of: str, path: str) -> str:
    """A path below a folder, and not beyond it."""
    parts = PurePosixPath(path).parts
    fits = parts and path.isprintable() and max(len(part.encode()) for part in parts) <= LONGEST_NAME
    if not fits or PurePosixPath(path).is_absolute() or ".." in parts:
        raise SpecError(f"{of}, path", f"{path!r:.60}", "a path below the folder")
    return path


def _is_text(content: str) -> bool:
    """Whether it can be written: JSON may hold half of a character."""
    return not any("\ud800" <= one <= "\udfff" for one in content)


def _lens(of: str, lists: Mapping[str, Tensor], sizes: Mapping[str, int], definition: Definition) -> tuple:
    """(query length, sequence length) of each sequence."""
    for name, end in (("kv_indptr", sizes["num_kv_indices"]), ("qo_indptr", sizes.get("total_q"))):
        if (starts := lists.get(name)) is not None and (
            not len(starts) or int(starts[0]) or int(starts[-1]) != end or bool((starts.diff() < 0).any())
        ):
            raise SpecError(f"{of}, {name}", f"{starts.tolist()!s:.80}", f"0 first, never less, {end} last")
    pages, page = lists["kv_indptr"].diff(), definition.page
    if sizes.get("batch_size", len(pages)) != len(pages):
        raise SpecError(f"{of}, axes, batch_size", sizes["batch_size"], f"len_indptr - 1 = {len(pages)}")
    last = lists.get("kv_last_page_len", torch.ones_like(pages))
    used = {
        "kv_indices": (lists["kv_indices"], 0, sizes["num_pages"] - 1),
        "kv_last_page_len": (last[pages > 0], 1, page),
    }
    for name, (found, least, most) in used.items():
        if len(bad := found[(found < least) | (found > most)]):
            raise SpecError(f"{of}, {name}", int(bad[0]), f"{least} to {most}")
    lengths = torch.where(pages > 0, (pages - 1) * page + last, 0)
    return tuple(lens_of(lists.get("qo_indptr", torch.arange(len(pages) + 1)), lengths))


def _shared(lists: Mapping[str, Tensor], lens: tuple, definition: Definition) -> int:
    """Leading pages of the row's, of context alone, that the two longest contexts have in common."""
    each = definition.shape.block_size // definition.page  # entries of a page of ours
    whole = [max(0, keys - queries) // definition.shape.block_size * each for queries, keys in lens]
    starts = zip(lists["kv_indptr"].tolist(), whole, strict=False)
    tables = sorted((lists["kv_indices"][start : start + count] for start, count in starts), key=len)
    if len(tables) < 2:
        return 0
    shorter, longer = tables[-2:]
    return int((shorter == longer[: len(shorter)]).int().cumprod(0).sum()) // each


@dataclass(frozen=True)
class Solution:
    """A kernel for one Definition, as Python sources by their paths. entry: (path, function). returned: whether it
    returns its outputs, and does not take them as its last arguments."""

    name: str
    definition: str
    sources: tuple[tuple[str, str], ...]
    entry: tuple[str, str] = ("main.py", "run")
    returned: bool = True

    @classmethod
    def of(cls, plain: Any) -> "Solution":
        """From a JSON object."""
        of = f"solution {get('solution', plain, 'name', str)}"
        spec = get(of, plain, "spec", dict)
        if (language := get(f"{of}, spec", spec, "language", str)).lower() not in LANGUAGES:
            raise SpecError(f"{of}, language", repr(language), ", ".join(LANGUAGES))
        sources = {
            inside(of, get(of, one, "path", str)): get(of, one, "content", str)
            for one in get(of, plain, "sources", list)
        }
        for one, content in sources.items():
            if not _is_text(content) or any(PurePosixPath(other) in PurePosixPath(one).parents for other in sources):
                raise SpecError(f"{of}, sources", f"{one!r:.60}", "text in a file that is no folder of another")
        path, _, symbol = get(f"{of}, spec", spec, "entry_point", str).partition("::")
        if path not in sources or not path.endswith(".py") or not symbol.isidentifier():
            raise SpecError(
                f"{of}, entry_point", repr(spec["entry_point"]), f"FILE.py::FUNCTION of {', '.join(sources)}"
            )
        returned = not spec.get("destination_passing_style", True)
        return cls(plain["name"], get(of, plain, "definition", str), tuple(sources.items()), (path, symbol), returned)

    @classmethod
    def of_ours(cls, kernel: str, definition: Definition) -> "Solution":
        """Our kernel by its id, for where this project is installed."""
        named = ", ".join(f"{name}={name}" for name in definition.inputs)
        text = f"""from diptych.common.engines.flashinfer import attention


def run({", ".join(definition.inputs)}):
    return attention({kernel!r}, {named})
"""
        name = f"diptych_{kernel.replace('/', '_').replace('.', '_')}_{definition.name}"
        return cls(name, definition.name, (("main.py", text),))

    def to_dict(self) -> dict[str, Any]:
        spec = {"language": "python", "target_hardware": ["cpu", "cuda"], "entry_point": "::".join(self.entry)}
        spec |= {"dependencies": ["diptych"], "destination_passing_style": not self.returned}
        sources = [{"path": path, "content": content} for path, content in self.sources]
        return {"name": self.name, "definition": self.definition, "author": "diptych", "spec": spec, "sources": sources}
