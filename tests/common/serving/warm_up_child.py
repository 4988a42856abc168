"""Bind a plan's warm-up, then a trace with right, missing and wrong hints, without TRITON_INTERPRET:

    python warm_up_child.py DSL TOKENS SEQS KEYS

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
from common.cases.batch import make_batch
from common.spec import AttentionShape
from compare.static import jit
from compare.static.helion_target import helion_as

SHAPE = AttentionShape(16, 1, 64, 16, torch.bfloat16)
STEPS = 400


def lengths(draw, tokens, seqs, keys):
    """A batch of up to `seqs` sequences: decodes, or up to `tokens` tokens dealt to prompts and decodes."""
    count, decode = draw.randint(1, seqs), draw.random() < 0.5
    queries = [1 if decode or draw.random() < 0.5 else draw.randint(1, tokens // count) for _ in range(count)]
    return [(query, draw.randint(query, keys)) for query in queries]


def main(dsl, tokens, seqs, keys):
    gpu, draw, bound = gpus.resolve("h200"), random.Random(0), set()
    common.serving.reach.gpu_of = lambda device: gpu
    target = jit.gpu_target(gpu.arch)

    def note(launch):
        bound.add((launch.function.__name__, jit.bind(launch, target).key))

    with helion_as(gpu), jit.intercepted(note):
        plan = importlib.import_module(f"dsl_{dsl}.auto").plan_paged_attention(SHAPE, tokens, seqs, keys, "cpu")
        plan.warmup()
        warm = set(bound)
        whole = make_batch([(1, keys)] * seqs, SHAPE, extra_columns=0)
        query = torch.zeros(tokens, SHAPE.num_query_heads, SHAPE.head_size, dtype=SHAPE.dtype)
        out = torch.empty_like(query)
        for lens in [[(1, keys), (20, keys)], *(lengths(draw, tokens, seqs, keys) for _ in range(STEPS))]:
            batch = make_batch(lens, SHAPE, fill=False)
            stats, count = batch.stats, batch.num_tokens
            exact = {name: getattr(stats, name) for name in ("max_query_len", "max_seq_len", "num_decodes")}
            hints = {name: draw.choice((hint, hint, None, 1)) for name, hint in exact.items()}
            plan(
                query[:count], whole.key_cache, whole.value_cache, whole.block_table[: batch.num_seqs],
                batch.query_start_loc, batch.seq_lens, out=out[:count], **hints,
            )  # fmt: skip
    print(json.dumps({"warm": len(warm), "lacked": sorted(name for name, _ in bound - warm)}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
