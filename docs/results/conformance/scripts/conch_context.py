"""conch's varlen_attention: query tokens behind a context are masked as if there were none; sums are of 16 bits (1.3)."""
import torch
from conch.ops.attention.varlen_attention import varlen_attention

torch.manual_seed(0)
device, heads, size, page = "cuda" if torch.cuda.is_available() else "cpu", 4, 64, 16
for queries, keys, dtype in ((64, 64, torch.float32), (1, 64, torch.float32), (16, 64, torch.float32), (1, 2048, torch.float16)):
    query = torch.randn(queries, heads, size, device=device).to(dtype)
    k, v = torch.randn(2, keys // page, page, heads, size, device=device).to(dtype)
    start, lens = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, queries], [keys]))
    table = torch.arange(keys // page, dtype=torch.int32, device=device)[None]
    found = varlen_attention(query, k, v, start, queries, lens, keys, table, causal=True, scale=size**-0.5)
    logits = torch.einsum("qhd,khd->hqk", query.double(), k.flatten(0, 1).double()) * size**-0.5
    hidden = torch.ones(queries, keys, device=device).triu(keys - queries + 1).bool()
    right = torch.einsum("hqk,khd->qhd", logits.masked_fill(hidden, -torch.inf).softmax(-1), v.flatten(0, 1).double())
    print(f"{queries} tokens of {keys}, {dtype}: off by {(found.double() - right).abs().max().item():.1e}")
