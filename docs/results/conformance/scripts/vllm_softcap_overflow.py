"""vLLM's unified_attention, softcap 50 and logits of some thousands: NaN where the answer is finite (0.25.1)."""
import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
n, heads, size = 16, 4, 64
query = 70 * torch.randn(n, heads, size, dtype=torch.float16, device=device)
key, value = torch.randn(2, 1, 16, 1, size, dtype=torch.float16, device=device)
key *= 70
start, length = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, n], [n]))
table, out = torch.zeros(1, 1, dtype=torch.int32, device=device), query.clone()
unified_attention(query, key, value, out, start, n, length, n, size**-0.5, True, (-1, -1), table, 50.0, None, None, None)
logits = torch.einsum("qhd,kd->hqk", query.float(), key.float().view(n, size)) * size**-0.5
hidden = torch.ones(n, n, device=device).triu(1).bool()
weights = (50 * torch.tanh(logits / 50)).masked_fill(hidden, -torch.inf).softmax(-1)
expected = torch.einsum("hqk,kd->qhd", weights, value.float().view(n, size))
print("largest logit, NaN found, expected:", logits.abs().max().item(), out.isnan().sum().item(), expected.isnan().sum().item())
