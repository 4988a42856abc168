"""Regressions without this project: the worst of each kind as its IR and a script that compiles it by any Triton.

The IR is what the front end made, without the places in our files. A script is kept where it was seen to show what the
page says: run by the release before and by the one behind. Where the same IR gives the same by both there is none.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from common import gpus
from common.gpus import Gpu
from common.process import Lost, once
from compare.process.crew import environment
from compare.static import jit
from compare.static.compile import compile_in_child
from compare.studies.versions import page
from compare.studies.versions.page import Regression
from compare.studies.versions.subjects import TARGETS, Pair, Subject

LIMIT_S = 300.0
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
_PLACES = re.compile(r"^#loc.*\n|^// .*\n| *\bloc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", re.M)

TEMPLATE = '''\
"""{title}

`python {name}` prints what the installed Triton makes of it; the GPU need not be there.
Of {subject}. Seen:
{seen}
"""
import collections, json, pathlib, re, subprocess, tempfile

import triton
from triton.backends.compiler import GPUTarget

TARGET, OPTIONS = GPUTarget({target}), {options}
for name in {sources}:
    found = {{"triton": triton.__version__, "source": name}}
    try:
        made = triton.compile(str(pathlib.Path(__file__).with_name(name)), target=TARGET, options=OPTIONS)
        if "amdgcn" in made.asm:
            text = made.asm["amdgcn"]
            found["registers"], found["spills"] = (
                int(re.search(rf"\\.vgpr_{{what}}:\\s+(\\d+)", text)[1]) for what in ("count", "spill_count"))
        else:
            tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(made.asm["cubin"])
                file.flush()
                text = subprocess.check_output([tool, "--dump-resource-usage", "-sass", file.name], text=True)
            found["registers"] = int(re.search(r"REG:(\\d+)", text)[1])
            found["spills"] = len(re.findall(r"\\bSTL\\b", text))
        found["shared"] = made.metadata.shared
        opcodes = {{"loads": "(?:global|buffer)_load|LDG|UTMALDG", "matrix": "v_s?mfma|HG?MMA|UTCHMMA"}}
        for what, names in opcodes.items():
            found[what] = collections.Counter(re.findall(rf"\\b(?:{{names}})[\\w.]*", text))
    except Exception as error:
        found["error"] = f"{{type(error).__name__}}: {{error}}"[:300]
    print(json.dumps(found))
'''


class Compilers(Protocol):
    """compare.studies.versions.versions.Shelf."""

    def compiling(self, pair: Pair, cache: str) -> Any: ...


@dataclass(frozen=True)
class Source:
    """One kernel's IR: its text, the dialect's suffix, the options that it is compiled with."""

    text: str
    suffix: str
    options: dict[str, Any]


def name_of(kind: tuple[str, str, str]) -> str:
    """`triton_3_8_0_gfx_spills.py`: without a dot, which parts a script's name from its IR's."""
    step, what, vendor = kind
    package, _, _, after = step.split()
    return f"{package}_{after}_{vendor}_{what}".replace(".", "_").replace(" ", "_") + ".py"


def found(folder: Path, worst: Sequence[Regression], beside: Path) -> dict[tuple[str, str, str], str]:
    """By kind the path of its script from the folder `beside`, where there is one of the present worst case."""
    kept = {one.kind: folder / name_of(one.kind) for one in worst if _is_of(folder / name_of(one.kind), one)}
    return {kind: str(path.relative_to(beside)) for kind, path in kept.items()}


def _is_of(path: Path, one: Regression) -> bool:
    return path.exists() and _subject(one) in path.read_text(encoding="utf-8")


def _subject(one: Regression) -> str:
    return f"{one.kernel} {one.after['id']}, {one.worst.launch or 'its first kernel that fails'}"


def write(
    folder: Path, worst: Sequence[Regression], subjects: Mapping[str, Sequence[Subject]], shelf: Compilers
) -> None:
    """Make the scripts that are missing, remove those of no present regression."""
    names = {name_of(one.kind): one for one in worst}
    for path in sorted(folder.glob("*")) if folder.exists() else ():
        if path.suffix == ".py" and not (path.name in names and _is_of(path, names[path.name])):
            for file in folder.glob(f"{path.stem}.*"):
                file.unlink()
    for name, one in names.items():
        if not (folder / name).exists():
            subject = next(s for s in subjects[one.target] if s.id == one.after["id"])
            _make(folder / name, one, subject, shelf)


def _make(path: Path, one: Regression, subject: Subject, shelf: Compilers) -> None:
    """Write one script and its IR, if it shows the regression."""
    gpu = gpus.resolve(TARGETS[one.target])
    before, after = one.step.of(subject.is_helion)
    lines = {before: one.before, after: one.after}
    irs = {pair: _sources(shelf, pair, gpu, subject, line, one.worst.launch) for pair, line in lines.items()}
    if one.step.package == "triton":
        tries = [(source,) for pair in (before, after) for source in irs[pair]]
    else:
        tries = list(zip(irs[before], irs[after], strict=False))
    for sources in tries:
        with tempfile.TemporaryDirectory() as scratch:
            files = _files(path.name, one, gpu, sources, [])
            for name, text in files.items():
                Path(scratch, name).write_text(text, encoding="utf-8")
            said = [_run(Path(scratch, path.name), pair, shelf) for pair in (before, after)]
        told = [said[0][0], said[1][-1]] if said[0] and said[1] else []
        if told and shows(one.what, *told):
            path.parent.mkdir(parents=True, exist_ok=True)
            for name, text in _files(path.name, one, gpu, sources, told).items():
                path.with_name(name).write_text(text, encoding="utf-8")
            return


def _sources(shelf: Compilers, pair: Pair, gpu: Gpu, subject: Subject, line: page.Line, symbol: str) -> list[Source]:
    """The kernels of that launch as this pair's front end makes them: of the regression's symbol, where it has one."""
    with tempfile.TemporaryDirectory() as cache, shelf.compiling(pair, cache):
        for _ in compile_in_child([subject.job()], gpu, limit_s=LIMIT_S):
            pass
        made = [_source(path) for path in sorted(Path(cache).glob("*/*.json")) if not path.name.startswith("__grp__")]
    known = [
        (one["kernel"], one["num_warps"], one["shared_bytes"]) for one in line["launches"] if one["kernel"] == symbol
    ]
    return [s for name, shared, s in made if s and (not known or (name, s.options.get("num_warps"), shared) in known)]


def _source(path: Path) -> tuple[str, int, Source | None]:
    """(symbol, bytes of shared memory, IR) of a kernel in Triton's cache, by its metadata."""
    told = json.loads(path.read_text())
    options = {name: told[name] for name in OPTIONS if told.get(name) is not None}
    for suffix in ("ttir", "ttgir"):  # Gluon begins at the second
        if (ir := path.with_suffix(f".{suffix}")).exists():
            text = _PLACES.sub("", ir.read_text(encoding="utf-8"))
            return path.stem, told.get("shared", 0), Source(text, suffix, options)
    return path.stem, 0, None


def _files(
    name: str, one: Regression, gpu: Gpu, sources: Sequence[Source], told: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The script and its IR by file name. told: what it printed by the release before and by the one behind."""
    target = jit.gpu_target(gpu.arch)
    irs = {f"{name.removesuffix('.py')}.{number}.{source.suffix}": source.text for number, source in enumerate(sources)}
    script = TEMPLATE.format(
        title=re.sub(r"[^\w .,:;()/+-]", " ", f"{one.step} for {one.target}: {one.worst}"),
        name=name,
        subject=_subject(one),
        seen="\n".join(json.dumps(dict(line)) for line in told),
        target=f"{target.backend!r}, {target.arch!r}, {target.warp_size}",
        options=sources[0].options,
        sources=tuple(irs),
    )
    return {name: script} | irs


def _run(script: Path, pair: Pair, shelf: Compilers) -> list[dict[str, Any]]:
    """What it prints by that release, a line a source; an error where the process did not survive it."""
    with tempfile.TemporaryDirectory() as cache, shelf.compiling(pair, cache):
        try:
            code, out, err = once([sys.executable, str(script)], environment("compile"), b"", LIMIT_S)
        except Lost as lost:
            return [{"triton": pair.triton, "error": lost.reason}]
    lines = [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]
    last = (err.decode(errors="replace").strip().splitlines() or [""])[-1]
    return lines if not code else [*lines, {"triton": pair.triton, "error": f"exit {code}: {last}"[:300]}]


def shows(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether what a script printed by both is the regression."""
    if "error" in before or "error" in after:
        return what == page.REFUSED and "error" not in before
    matrix = [sum(found["matrix"].values()) for found in (before, after)]
    match what:
        case page.SPILLS:
            return after["spills"] > before["spills"]
        case page.PROGRAMS:
            return after["registers"] > before["registers"] or after["shared"] > before["shared"]
        case page.REDUNDANT:
            return matrix[1] > matrix[0]
        case page.MATRIX:
            return matrix[0] > 0 == matrix[1]
        case page.WIDTH:
            return before["loads"] != after["loads"]
    return False
