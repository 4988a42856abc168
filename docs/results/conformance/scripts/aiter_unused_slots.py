"""AITER's unified_attention, decodes: V of slots behind a sequence is multiplied by weights of 0, so NaN there is NaN (0.1.7)."""
import torch
from aiter.ops.triton.unified_attention import unified_attention

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
for queries, left in ((1, 0.0), (1, float("nan")), (4, float("nan"))):
    query = torch.randn(queries, 8, 64, device=device).half()
    k, v = torch.randn(2, 2, 16, 2, 64, device=device).half()
    k[1, 4:], v[1, 4:] = left, left  # 20 keys in two pages of 16
    out, table, start, lens = torch.empty_like(query), *(torch.tensor(x, device=device).int() for x in ([[0, 1]], [0, queries], [20]))
    unified_attention(query, k, v, out, start, queries, lens, 20, 0.125, True, (-1, -1), table, 0, None, None, None)
    keys, values = (c.flatten(0, 1)[:20].float().repeat_interleave(4, 1) for c in (k, v))
    hidden = torch.ones(queries, 20, device=device).triu(21 - queries).bool()
    weights = (torch.einsum("qhd,khd->hqk", query.float(), keys) * 0.125).masked_fill(hidden, -torch.inf).softmax(-1)
    right = torch.einsum("hqk,khd->qhd", weights, values)
    print(f"{queries} tokens, unused slots hold {left}: off by {(out.float() - right).abs().max().item():.1e}")
