"""vLLM's unified_attention, causal=False with a sliding window: rows of a query block lose V of keys to their right."""
import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
n, window, heads, size = 64, 5, 4, 64
query = torch.randn(n, heads, size, dtype=torch.float16, device=device)
key, value = torch.randn(2, n // 16, 16, 1, size, dtype=torch.float16, device=device)
start, length = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, n], [n]))
table, out, at = torch.arange(n // 16, dtype=torch.int32, device=device)[None], query.clone(), torch.arange(n, device=device)
unified_attention(query, key, value, out, start, n, length, n, size**-0.5, False, (window - 1, window - 1), table, 0,
                  None, None, None)
logits = torch.einsum("qhd,kd->hqk", query.float(), key.float().view(n, size)) * size**-0.5
seen = (at[:, None] - at).abs() < window
weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
expected = torch.einsum("hqk,kd->qhd", weights, value.float().view(n, size))
print("largest error of each token modulo 4:", (out - expected).abs().amax((1, 2)).view(-1, 4).amax(0).tolist())
