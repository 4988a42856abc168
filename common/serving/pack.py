"""One file of compiled code for a GPU, which a user can ship: a start elsewhere then compiles nothing.

In: the folder that Triton caches code in, which holds what Helion generated too (dsl_helion/kept.py). Out: a tar whose
first member says what the code was made with and the SHA-256 of each file. Triton finds code by a hash of sources,
versions and options, so that a file of another state of these is never run in place of what is asked; it is refused
because it would be of no use.
"""

import hashlib
import io
import json
import os
import platform
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from common.gpus import Gpu, gpu_of
from common.serving.whole import put
from common.spec import SpecError
from common.spec.refusals import expect_file
from common.versions import here

FIRST, FORMAT = "diptych.json", 1
GROUP = "__grp__"  # how Triton lists the files of a kernel, by their whole paths
TEXTS = (".ttir", ".ttgir", ".llir", ".ptx", ".amdgcn", ".source")  # read by people alone
MAKE = "make one here: `diptych pack FILE --shape MODEL`"


def made_with(device: torch.device) -> dict[str, str]:
    """What code for `device` follows from, beside the kernels' own keys. Raises SpecError without a GPU."""
    gpu = gpu_of(device)
    if gpu is None:
        raise SpecError("device", str(device), "a GPU: code is compiled for one")
    return made_for(gpu)


def made_for(gpu: Gpu) -> dict[str, str]:
    """What code for a GPU follows from, beside the kernels' own keys."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for path in sorted(path for dsl in ("dsl_triton", "dsl_helion") for path in (root / dsl).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    python = f"{sys.implementation.cache_tag} {sysconfig.get_platform()} {platform.libc_ver()[0]}".strip()
    packages = {name: here(name) for name in ("torch", "triton", "helion")}
    return {"gpu": gpu.name, "units": str(gpu.units), **packages, "python": python, "sources": digest.hexdigest()[:16]}


def pack(folder: Path, file: Path, made: Mapping[str, str]) -> tuple[str, int]:
    """Pack a cache into `file`; returns its SHA-256 and how many files it holds. Raises SpecError for an empty one."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        left_over = path.suffix in (*TEXTS, ".lock") or any(part.startswith((".", "tmp.")) for part in name.parts)
        if path.is_file() and not left_over:
            found[name.as_posix()] = _portable(path)
    if not found:
        raise SpecError("--from", str(folder), "a folder that Triton has cached code in")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    head = json.dumps({"format": FORMAT, "made_with": dict(made), "files": sums}, indent=1).encode()
    unfinished = file.with_name(f"{file.name}.tmp")
    with tarfile.open(unfinished, "w:xz") as archive:
        for name, content in ({FIRST: head} | found).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    os.replace(unfinished, file)
    return hashlib.sha256(file.read_bytes()).hexdigest(), len(found)


def _portable(path: Path) -> bytes:
    """A file's content; a group lists the files that are packed, by their names alone."""
    if not path.name.startswith(GROUP):
        return path.read_bytes()
    children = json.loads(path.read_text(encoding="utf-8"))["child_paths"]
    return json.dumps({"child_paths": {name: name for name in children if not name.endswith(TEXTS)}}).encode()


def read(file: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """(what the code was made with, content of each file by name), all hashes checked. Raises SpecError."""
    expect_file(file, "file", f"one of `diptych pack`; {MAKE}")
    try:
        with tarfile.open(file, "r:xz") as archive:
            members = {one.name: archive.extractfile(one).read() for one in archive if one.isreg()}
        head = json.loads(members.pop(FIRST))
        made, sums = dict(head["made_with"]), dict(head["files"])
        if head["format"] != FORMAT:
            raise SpecError(str(file), f"format {head['format']!r}", f"format {FORMAT}; {MAKE}")
    except FileNotFoundError as error:
        raise SpecError(str(file), "no such file", MAKE) from error
    except SpecError:
        raise
    except (OSError, EOFError, tarfile.TarError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise SpecError(str(file), why, f"a whole file of `diptych pack`; {MAKE}") from error
    bad = {name for name in sums.keys() | members.keys()
           if name not in members or hashlib.sha256(members[name]).hexdigest() != sums.get(name)}  # fmt: skip
    bad |= {name for name in members if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts}
    if bad:
        raise SpecError(str(file), f"{min(bad)} is not what was packed", f"an undamaged file: copy it again, or {MAKE}")
    return made, members


def expect_fitting(file: Path, made: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise SpecError where a file's code is for another GPU, or was made with other versions or sources."""
    for name, value in wanted.items():
        if made.get(name) != value:
            raise SpecError(str(file), f"code for {name} {made.get(name, 'unknown')}", f"{name} {value}; {MAKE}")


def unpack(file: Path, folder: Path, wanted: Mapping[str, str]) -> int:
    """Put a file's code where Triton looks for it; returns how many files were not there yet. Raises SpecError."""
    made, members = read(file)
    expect_fitting(file, made, wanted)
    left = {name: content for name, content in members.items() if not (folder / name).exists()}
    try:
        for name, content in sorted(left.items(), key=lambda one: PurePosixPath(one[0]).name.startswith(GROUP)):
            _write(folder / name, content)
    except OSError as error:
        raise SpecError(
            str(folder), error.strerror or error, "a folder that can be written: TRITON_CACHE_DIR"
        ) from error
    return len(left)


def _write(path: Path, content: bytes) -> None:
    """Write a file of the cache. A group comes last, for it makes its kernel be found."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.name.startswith(GROUP):
        children: dict[str, Any] = json.loads(content)["child_paths"]
        content = json.dumps({"child_paths": {name: str(path.parent / name) for name in children}}).encode()
    put(path, content)
