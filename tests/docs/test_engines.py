"""docs/engines.md: its step loop runs as it stands, in both DSLs, and every token sees its own sequence."""

from pathlib import Path

import pytest
import torch

from common.cases.batch import make_batch
from common.serving.facade import FlashAttention
from common.spec import AttentionShape
from dsl_triton import auto

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


def example():
    return PAGE.read_text().split("## A step loop\n")[1].split("```python\n")[1].split("```")[0]


def expected(steps, layers, heads):
    """Dense attention, step by step and layer by layer, over all K and V that a sequence was ever given."""
    past = [[torch.empty(2, 0, 2, 64)] * 2 for _ in range(layers)]
    for query_lens, drawn in steps:
        for layer, (query, new) in enumerate(drawn):
            outs = []
            parts = zip(query.split(query_lens), new.split(query_lens, dim=1), strict=True)
            for seq, (rows, kv) in enumerate(parts):
                key, value = past[layer][seq] = torch.cat([past[layer][seq], kv], 1)
                key, value = (x.repeat_interleave(heads // 2, 1).transpose(0, 1) for x in (key, value))
                seen = torch.ones(len(rows), key.shape[1], dtype=torch.bool).tril(key.shape[1] - len(rows))
                logits = rows.transpose(0, 1) @ key.mT / 8.0
                outs.append((logits.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(0, 1))
            yield torch.cat(outs)


@pytest.mark.parametrize("dsl", ["dsl_triton", pytest.param("dsl_helion", marks=pytest.mark.slow)])
def test_the_step_loop_attends_to_every_token_of_its_sequence(dsl, monkeypatch):
    drawn, randn, names = [], torch.randn, {}
    monkeypatch.setattr(torch, "randn", lambda *sizes, **options: drawn.append(randn(*sizes, **options)) or drawn[-1])
    torch.manual_seed(0)
    exec(compile(example().replace("dsl_triton", dsl), PAGE.name, "exec"), names)
    pairs = [(query.cpu(), new.cpu()) for query, new in zip(drawn[::2], drawn[1::2], strict=True)]
    lens, layers = ([20, 9], [1, 1], [1, 1], [1, 4]), names["layers"]
    steps = [(of, pairs[layers * at : layers * (at + 1)]) for at, of in enumerate(lens)]
    for found, wanted in zip(names["served"], expected(steps, layers, names["heads"]), strict=True):
        torch.testing.assert_close(found.cpu(), wanted)
    assert names["seq_lens"] == [23, 15]


def test_flash_attentions_calls_go_over_a_plan():
    """What the page says of `FlashAttention(plan)`."""
    shape = AttentionShape(4, 2, 32, 16, torch.float32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = make_batch([(1, 30), (3, 9)], shape, device=device)
    asked = {"cu_seqlens_q": batch.query_start_loc, "seqused_k": batch.seq_lens, "block_table": batch.block_table}
    asked |= {"max_seqlen_q": 3, "max_seqlen_k": 30, "causal": True}
    tensors = (batch.query, batch.key_cache, batch.value_cache)
    plan = auto.plan_paged_attention(shape, 8, 2, 48, device)
    assert torch.equal(
        FlashAttention(plan).flash_attn_varlen_func(*tensors, **asked), auto.flash_attn_varlen_func(*tensors, **asked)
    )
