"""vLLM's older pair: a request of no tokens beside a prompt is taken for a decode; it overwrites the next one's row (0.32.0)."""
import torch
from vllm.v1.attention.ops.chunked_prefill_paged_decode import chunked_prefill_paged_decode

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
query = torch.randn(2, 1, 64, device=device)
keys, values = torch.randn(2, 2, 16, 1, 64, device=device)
packed = keys.permute(0, 2, 3, 1)[:, :, None].transpose(3, 4).contiguous(), values.permute(0, 2, 3, 1).contiguous()
for starts in ([0, 2, 2], [0, 0, 2]):  # the prompt of two tokens first, or behind the empty request
    prompt = starts.index(0) if starts[1] else 1
    table, start, lens = (torch.tensor(x, device=device).int() for x in ([[0], [1]], starts, [2, 2]))
    out, one = torch.empty(3, 1, 64, device=device)[:2], torch.ones(1, device=device)
    chunked_prefill_paged_decode(query, None, None, out, "auto", *packed, table, start, lens, 2, 2, one, one, sm_scale=0.125)
    k, v = keys[prompt, :2, 0], values[prompt, :2, 0]
    right = (query[:, 0] @ k.T * 0.125).masked_fill(~torch.ones(2, 2, device=device).tril().bool(), -torch.inf).softmax(-1) @ v
    print(starts, "rows of the prompt off by", (out[:, 0] - right).abs().amax(1).tolist())
