"""SGLang's grouped decode: a tile of 16 query heads that lies across two KV heads reads the first one's keys (0.5.23)."""
import torch
from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

device, keys, size = "cuda" if torch.cuda.is_available() else "cpu", 40, 64
torch.manual_seed(0)
for group in (16, 17, 24, 32):  # query heads of each of two KV heads
    query = torch.randn(1, 2 * group, size, device=device)
    k, v = torch.randn(2, keys, 2, size, device=device)
    found, ints = torch.empty_like(query), {"device": device, "dtype": torch.int32}
    parts = torch.empty(1, 2 * group, 8, size, device=device), torch.empty(1, 2 * group, 8, device=device)
    starts, slots, splits = torch.tensor([0, keys], **ints), torch.arange(keys, device=device), torch.full((1,), 8, **ints)
    decode_attention_fwd(query, k, v, found, starts, slots, *parts, splits, 8, size**-0.5, 1.0, 1.0)
    weights = (torch.einsum("hd,khd->hk", query[0], k.repeat_interleave(group, 1)) * size**-0.5).softmax(-1)
    right = torch.einsum("hk,khd->hd", weights, v.repeat_interleave(group, 1))
    print(f"{group}: heads off by more than 0.1:", ((found[0] - right).abs().amax(-1) > 0.1).nonzero().flatten().tolist())
