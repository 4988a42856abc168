"""vLLM's adapter behind a warm-up, one sequence growing from 500 to 6,900 keys, as for an H200 that need not be here:

    python steps_child.py KERNEL

Nothing is launched. Prints in JSON: launches `warmed` up; kernels that Helion `generated` until then and `later`; steps
that were `unmet`; lengths `again` at which a second layer was dispatched anew, where the first one's launches should
have been repeated; how many lengths were looked at.
"""

import json
import os
import sys
from types import SimpleNamespace

import torch

import stand_in_vllm
from common.serving.grid import KEYS
from compare.studies import host

HEADS, KV_HEADS, SIZE, PAGE, MOST_KEYS = 32, 8, 128, 16, 8192  # Llama-3-8B's, as `study engine` has it


class Config(SimpleNamespace):
    """As an engine's config, which may be referred to weakly."""


def layers(backend, count):
    engine = Config(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=MOST_KEYS, max_num_seqs=256),
        model_config=SimpleNamespace(max_model_len=MOST_KEYS, dtype=torch.bfloat16),
        device_config=SimpleNamespace(device=torch.device("cpu")),
        cache_config=SimpleNamespace(block_size=PAGE, num_gpu_blocks=None),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1), speculative_config=None,
    )  # fmt: skip
    backend.get_current_vllm_config = lambda: engine
    made = [backend.Impl(HEADS, SIZE, SIZE**-0.5, KV_HEADS) for _ in range(count)]
    return engine, made, backend.MetadataBuilder(None, ["0"], engine, torch.device("cpu"))


def main(kernel):
    os.environ |= {"DIPTYCH_KERNEL": kernel, "DIPTYCH_WARM": "1"}
    stand_in_vllm.install()
    from common.engines import vllm_backend as backend
    from dsl_helion.kept import counts

    stated = sys.modules["vllm.v1.attention.backend"].CommonAttentionMetadata
    with host.nothing_launched() as dispatched:
        _, made, builder = layers(backend, 2)  # the engine's config lives as long as its layers
        cache = torch.empty(1, 2, PAGE, KV_HEADS, SIZE, dtype=torch.bfloat16)
        query = torch.empty(1, HEADS, SIZE, dtype=torch.bfloat16)
        key, out = torch.empty(1, KV_HEADS, SIZE, dtype=torch.bfloat16), torch.empty_like(query)
        for impl in made:
            impl.forward(None, query, key, key, cache, None, out)
        server, generated, again = made[0].server, counts["generated"], []
        starts, lens = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
        table, slot = torch.zeros(1, MOST_KEYS // PAGE, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        lengths = sorted(n + change for n in KEYS if 500 < n < 6900 for change in (0, 1))  # where choices may change
        for keys in lengths:
            step = builder.build(0, stated(starts, starts, lens, 1, 1, 1, keys, table, slot))
            for number, impl in enumerate(made):
                before = len(dispatched)
                impl.forward(None, query, key, key, cache, step, out)
                if number and len(dispatched) > before:
                    again.append(keys)
    print(json.dumps({
        "warmed": server.warmed, "generated": generated, "later": counts["generated"] - generated,
        "unmet": server.unmet, "again": again, "lengths": len(lengths),
    }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
