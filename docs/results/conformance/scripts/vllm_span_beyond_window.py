"""vLLM's unified_attention, a bidirectional span longer than the sliding window: V of the span's late keys is lost."""
import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
n, window, heads, size = 64, 8, 4, 64
query = torch.randn(n, heads, size, dtype=torch.float16, device=device)
key, value = torch.randn(2, n // 16, 16, 1, size, dtype=torch.float16, device=device)
start, length, span = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, n], [n], [[[0, 47]]]))
table, out, at = torch.arange(n // 16, dtype=torch.int32, device=device)[None], query.clone(), torch.arange(n, device=device)
unified_attention(query, key, value, out, start, n, length, n, size**-0.5, True, (window - 1, 0), table, 0, None, None,
                  None, mm_prefix_range=span)
logits = torch.einsum("qhd,kd->hqk", query.float(), key.float().view(n, size)) * size**-0.5
seen = ((at <= at[:, None]) & (at > at[:, None] - window)) | ((at < 48) & (at[:, None] < 48))
weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
expected = torch.einsum("hqk,kd->qhd", weights, value.float().view(n, size))
print("largest error inside the span, outside:", [(out - expected)[x].abs().max().item() for x in (at < 48, at >= 48)])
