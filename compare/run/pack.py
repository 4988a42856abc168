"""One file of compiled code for the GPU that is here: with DIPTYCH_PACK=FILE an engine's start compiles nothing.

    python -m compare pack h200.pack --shape llama-3-8b --kernel triton/native.auto --limits 8192,256,8192
    python -m compare pack h200.pack --from ~/.triton/cache      all that an engine's first start left there
    python -m compare pack h200.pack --check                     whether a file is whole, and of this GPU and versions

--limits: query tokens and sequences of a step, keys of a sequence, as the
engine has them. What is compiled is what an engine's warm-up of such layers compiles.
Exit codes: 0; 2 usage, or a file that is damaged or of another GPU, version or source; 3 no GPU.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch

from common.serving import pack
from common.serving.ahead import stand_in_caches
from common.spec import AttentionShape, Features, SpecError
from compare.exits import NO_GPU, OK, refusing
from compare.record.folder import ensure_writable
from compare.workloads import GrammarError, parse_shape
from compare.workloads.numbers import page

HELP = "one file of compiled code for this GPU: an engine's start then compiles nothing"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--shape", help="compile for layers of heads:kv_heads:head_size, or of a model")
    what.add_argument("--from", type=Path, metavar="DIR", dest="cache", help="a folder that Triton has cached code in")
    what.add_argument("--check", action="store_true", help="only say what the file is, and whether it fits here")
    parser.add_argument("--kernel", default="triton/native.auto", metavar="ID", help="(default triton/native.auto)")
    parser.add_argument("--block-size", type=page, default=16, help="tokens of a KV-cache page (default 16)")
    parser.add_argument("--dtype", default="bf16", help="bf16 (default), fp16, fp32")
    parser.add_argument("--limits", default="8192,256,8192", metavar="T,S,K", help="(default 8192,256,8192)")


def limits(text: str) -> tuple[int, int, int]:
    """Tokens, sequences, keys. Raises SpecError."""
    given = [part.strip() for part in text.split(",")]
    if len(given) != 3 or not all(part.isdecimal() and 0 < int(part[:20]) < 2**31 for part in given):
        allowed = "three integers from 1 to 2147483647: query tokens, sequences, keys of a sequence"
        raise SpecError("--limits", f"{text:.60}", allowed)
    return int(given[0]), int(given[1]), int(given[2])


def compile_ahead(kernel: str, shape: AttentionShape, most: tuple[int, int, int], folder: Path) -> None:
    """Fill `folder` with what an engine's warm-up compiles. Raises SpecError, Unsuitable."""
    os.environ |= {"TRITON_CACHE_DIR": str(folder), "TRITON_STORE_BINARY_ONLY": "1"}  # read when code is compiled
    from common.engines.options import Options
    from common.engines.server import Limits, Server

    kv_heads, size = shape.num_kv_heads, shape.head_size
    server = Server(Options(kernel), Limits(*most), torch.device("cuda", torch.cuda.current_device()))
    caches = stand_in_caches(shape, server.beside, server.device)
    plan = server.bind(shape, Features(), caches, new_kv=True)
    rows = torch.zeros(2, 16, kv_heads, size, dtype=shape.dtype, device=server.device)
    plan.write(*rows, *caches, torch.full((16,), -1, device=server.device))
    torch.cuda.synchronize()


@refusing(SpecError, GrammarError)
def main(asked: argparse.Namespace) -> int:
    most = limits(asked.limits)
    shape = asked.shape and parse_shape(asked.shape, asked.block_size, asked.dtype)
    if asked.check:
        made, members = pack.read(asked.file)
        print(f"{len(members)} files for " + ", ".join(f"{name} {value}" for name, value in made.items()))
    if not torch.cuda.device_count():
        print("no GPU is here: code is packed, and found to fit, on the GPU that runs it", file=sys.stderr)
        return NO_GPU
    wanted = pack.made_with(torch.device("cuda", torch.cuda.current_device()))
    if asked.check:
        pack.expect_fitting(asked.file, made, wanted)
        return OK
    if asked.file.is_dir():
        raise SpecError("FILE", f"the folder {asked.file}", "a file to write")
    ensure_writable(asked.file.parent)  # before minutes of compiling
    with tempfile.TemporaryDirectory() as folder:
        if shape:
            compile_ahead(asked.kernel, shape, most, Path(folder))
        digest, count = pack.pack(asked.cache or Path(folder), asked.file, wanted)
    print(f"{asked.file}: {count} files, {asked.file.stat().st_size / 1e6:.1f} MB, sha256 {digest}")
    return OK
