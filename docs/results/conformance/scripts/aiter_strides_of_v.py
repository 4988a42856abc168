"""AITER's paged_attention_decode addresses V by K's strides: a V that lies otherwise is read in wrong places (0.1.7)."""
import torch
import triton.language as tl
from aiter.ops.triton.pa_decode import paged_attention_decode

torch.manual_seed(0)
device, keys, size, page = "cuda" if torch.cuda.is_available() else "cpu", 40, 64, 16
query = torch.randn(1, 8, size, device=device).half()
k, v = torch.randn(2, 3, 2, page, size, device=device).half()  # [pages, KV heads, slots, size]
lens, table, one = torch.tensor([keys], device=device).int(), torch.arange(3, device=device)[None].int(), torch.ones(1)
flat = [c.transpose(1, 2).flatten(0, 1)[:keys].double().repeat_interleave(4, 1) for c in (k, v)]
right = torch.einsum("hk,khd->hd", (torch.einsum("hd,khd->hk", query[0].double(), flat[0]) * 0.125).softmax(-1), flat[1])
for name, held in (("as K", v), ("slots before heads", v.transpose(1, 2).contiguous().transpose(1, 2))):
    out = torch.empty_like(query)
    paged_attention_decode(out, query, k, held, lens, table, 0.125, keys, tl.float16, one, one)
    print(f"V lies {name}: off by {(out[0].double() - right).abs().max().item():.1e}")
