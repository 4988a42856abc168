"""LMDeploy's flash_attn_with_kvcache: V of slots behind a sequence is multiplied by weights of 0, so NaN there is NaN (0.18.0)."""
import torch
from lmdeploy.pytorch.kernels.cuda.pagedattention import flash_attn_with_kvcache

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
for left in (0.0, float("nan")):
    query = torch.randn(1, 4, 64, device=device).half()
    k, v = torch.randn(2, 2, 16, 4, 64, device=device).half()
    k[1, 4:], v[1, 4:] = left, left  # 20 keys in two pages of 16
    lens, table = torch.tensor([20], dtype=torch.int32, device=device), torch.tensor([[0, 1]], device=device).int()
    found = flash_attn_with_kvcache(query, k, v, lens, table, softmax_scale=0.125)
    weights = (torch.einsum("qhd,khd->hqk", query.float(), k.flatten(0, 1)[:20].float()) * 0.125).softmax(-1)
    right = torch.einsum("hqk,khd->qhd", weights, v.flatten(0, 1)[:20].float())
    print(f"unused slots hold {left}: off by {(found.float() - right).abs().max().item():.1e}")
