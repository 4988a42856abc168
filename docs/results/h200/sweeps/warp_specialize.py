"""Automatic warp specialisation (`tl.range(..., warp_specialize=True)`) of a causal prompt's loop, in Triton on Hopper.

    python warp_specialize.py > warp_specialize.jsonl

Compiled by 3.6.0, 3.7.1, 3.8.0 and 3.9.0 alike: one loop over descriptors made on the device becomes three warp groups,
a producer and two of 64 rows. A branch in the loop turns it off without a word; a second loop or tiles behind the loop
fail in the pass NVGPUWarpSpecialization. On an H200 3.6.0's code ends, and its results are wrong. Each form runs in a
process with a time limit: other forms hung the GPU.
"""

import json
import math
import statistics
import subprocess
import sys

import torch
import triton
import triton.language as tl

HEAD = 128
FORMS = [(8192, 64, 2, 0), *((8192, keys, stages, 1) for keys, stages in ((64, 2), (64, 3), (128, 2), (32, 4)))]
FORMS += [(2048, 128, 2, 1), (32768, 128, 2, 1)]


@triton.jit
def attend(q, k, v, out, seq, base2, GROUP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
           HEAD: tl.constexpr, SPECIALISE: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    head = tl.program_id(0)
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    of = (head // GROUP).to(tl.int64) * seq * HEAD
    keys = tl.make_tensor_descriptor(k + of, [seq, HEAD], [HEAD, 1], [KEYS, HEAD])
    values = tl.make_tensor_descriptor(v + of, [seq, HEAD], [HEAD, 1], [KEYS, HEAD])
    queries = tl.make_tensor_descriptor(q + head.to(tl.int64) * seq * HEAD, [seq, HEAD], [HEAD, 1], [ROWS, HEAD])
    query = queries.load([first, 0])
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    m = tl.full([ROWS], -1e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    rows = first + tl.arange(0, ROWS)
    for j in tl.range(0, first + ROWS, KEYS, warp_specialize=SPECIALISE, num_stages=STAGES):
        s = tl.dot(query, keys.load([j, 0]).T)
        s = tl.where(rows[:, None] >= (j + tl.arange(0, KEYS))[None, :], s, float("-inf"))
        new = tl.maximum(m, tl.max(s, 1) * base2)
        p = tl.exp2(s * base2 - new[:, None])
        alpha = tl.exp2(m - new)
        l = l * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), values.load([j, 0]), acc * alpha[:, None])
        m = new
    store = tl.make_tensor_descriptor(out + head.to(tl.int64) * seq * HEAD, [seq, HEAD], [HEAD, 1], [ROWS, HEAD])
    store.store([first, 0], (acc / l[:, None]).to(tl.bfloat16))


def measured(seq, keys, stages, specialise):
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    torch.manual_seed(0)
    q, k, v = (torch.randn(heads, seq, HEAD, device="cuda", dtype=torch.bfloat16) for heads in (32, 8, 8))
    out, base2 = torch.empty_like(q), HEAD**-0.5 * math.log2(math.e)

    def run():
        attend[(32, seq // 128)](q, k, v, out, seq, base2, 4, 128, keys, HEAD, bool(specialise), stages, num_warps=4)

    run()
    wide = [x.repeat_interleave(4, 0)[None] for x in (k, v)]
    right = torch.nn.functional.scaled_dot_product_attention(q[None], *wide, is_causal=True)[0]
    error = (out.float() - right.float()).abs().max().item()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    for _ in range(10):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 100)
    us = statistics.median(times)
    tflops = round(4 * 32 * HEAD * seq * (seq + 1) / 2 / us / 1e6)
    told = {"triton": triton.__version__, "seq": seq, "keys": keys, "stages": stages, "specialised": bool(specialise)}
    print(json.dumps(told | {"us": round(us, 1), "tflops": tflops, "max_error": error}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measured(*map(int, sys.argv[1:]))
    for form in FORMS if len(sys.argv) == 1 else ():
        subprocess.run([sys.executable, __file__, *map(str, form)], timeout=60, check=False)
