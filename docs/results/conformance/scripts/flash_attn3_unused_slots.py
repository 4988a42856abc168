"""FlashAttention 3 of vLLM 0.25.1, prompts over pages of 128: NaN in the unused slots of a last page reaches the output."""
import torch
from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func

lens, queries = [2000, 1777], [512, 512]
for page in (16, 64, 128):
    torch.manual_seed(0)
    columns = -(-max(lens) // page)
    key = torch.randn(2 * columns, page, 8, 128, device="cuda", dtype=torch.bfloat16)
    value, table = torch.randn_like(key), torch.arange(2 * columns, device="cuda", dtype=torch.int32).view(2, columns)
    for row, length in enumerate(lens):
        for column in range(columns):
            used = min(max(length - column * page, 0), page)
            key[table[row, column], used:] = value[table[row, column], used:] = float("nan")
    starts = torch.tensor([0, 512, 1024], device="cuda", dtype=torch.int32)
    query, used = torch.randn(1024, 32, 128, device="cuda", dtype=torch.bfloat16), torch.tensor(lens, device="cuda", dtype=torch.int32)
    out = flash_attn_varlen_func(query, key, value, 512, starts, 2000, seqused_k=used, block_table=table, causal=True, fa_version=3)
    print(page, "rows with NaN:", out.isnan().flatten(1).any(1).sum().item(), "of", len(out))
