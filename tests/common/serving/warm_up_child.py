"""Bind a plan's warm-up, then a trace with right, missing and wrong hints, without TRITON_INTERPRET:

    python warm_up_child.py DSL KERNEL TOKENS SEQS KEYS

KERNEL: auto, or the one that serves all.

Caches and queries of the trace are laid out as engines lay them out, each of them as warm; the warm-up has one of those
whose strides the code holds alike (Family.fixed).
For an H200 that need not be here, by Triton's own binder; nothing is compiled. Two launches that it gives one source
and options share their code. Prints in JSON how many of those the warm-up had, and the kernels of what it lacked.
"""

import importlib
import json
import random
import sys

import torch

import common.serving.reach
from common import gpus
from common.absent import gpu_target, helion_as
from common.cases.batch import make_batch
from common.serving.arguments import HINTS
from common.spec import AttentionShape
from compare.static import jit

SHAPE = AttentionShape(16, 1, 64, 16, torch.bfloat16)
STEPS = 400


def lengths(draw, tokens, seqs, keys):
    """A batch of up to `seqs` sequences: decodes, or up to `tokens` tokens dealt to prompts and decodes."""
    count, decode = draw.randint(1, seqs), draw.random() < 0.5
    queries = [1 if decode or draw.random() < 0.5 else draw.randint(1, tokens // count) for _ in range(count)]
    return [(query, draw.randint(query, keys)) for query in queries]


def layouts(cache):
    """[(K, V)] of as many pages: each by itself, page by page beside each other, row by row, and by head."""
    blocks, page, heads, lanes = cache.shape
    make = torch.zeros
    return [
        make(2, *cache.shape, dtype=cache.dtype).unbind(0),
        make(blocks, 2, page, heads, lanes, dtype=cache.dtype).unbind(1),
        make(blocks, page, heads, 2 * lanes, dtype=cache.dtype).split(lanes, -1),
        make(2, blocks, heads, page, lanes, dtype=cache.dtype).transpose(2, 3).unbind(0),
    ]


def main(dsl, kernel, tokens, seqs, keys):
    gpu, draw, bound = gpus.resolve("h200"), random.Random(0), set()
    common.serving.reach.gpu_of = lambda device: gpu
    target = gpu_target(gpu.arch)

    def note(launch):
        bound.add((launch.function.__name__, jit.bind(launch, target).key))

    with helion_as(gpu), jit.intercepted(note):
        planner = importlib.import_module(f"dsl_{dsl}.auto").plan_paged_attention
        plan = planner(SHAPE, tokens, seqs, keys, "cpu", kernel=None if kernel == "auto" else kernel)
        whole = make_batch([(1, keys)] * seqs, SHAPE, extra_columns=0)
        caches = layouts(whole.key_cache)
        distinct = {tuple(one.stride(axis) for axis in plan.family.fixed for one in pair): pair for pair in caches}
        for key, value in distinct.values():
            plan.warmup(key_cache=key, value_cache=value)
        warm = set(bound)
        heads = SHAPE.num_query_heads
        projected = torch.zeros(tokens, heads + 2 * SHAPE.num_kv_heads, SHAPE.head_size, dtype=SHAPE.dtype)
        query = projected[:, :heads]
        out = torch.empty(query.shape, dtype=query.dtype)
        for lens in [[(1, keys), (20, keys)], *(lengths(draw, tokens, seqs, keys) for _ in range(STEPS))]:
            batch = make_batch(lens, SHAPE, fill=False)
            stats, count = batch.stats, batch.num_tokens
            exact = {name: getattr(stats, name) for name in HINTS}
            hints = {name: draw.choice((hint, hint, None, 1)) for name, hint in exact.items()}
            plan(
                query[:count], *draw.choice(caches), whole.block_table[: batch.num_seqs],
                batch.query_start_loc, batch.seq_lens, out=out[:count], **hints,
            )  # fmt: skip
    print(json.dumps({"warm": len(warm), "lacked": sorted(name for name, _ in bound - warm)}))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
