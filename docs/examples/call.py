"""A call, on a CPU or a GPU: the text of docs/engines.md."""

import torch
from diptych.dsl_triton import paged_attention  # diptych.dsl_helion has the same call

device = "cuda" if torch.cuda.is_available() else "cpu"
query = torch.randn(5, 8, 64, device=device)  # 8 heads: one token of the first sequence, four of the second
key_cache, value_cache = torch.randn(2, 16, 16, 2, 64, device=device)  # 16 pages of 16 tokens, 2 KV heads
block_table = torch.tensor([[3, 7, 1], [0, 5, 2]], dtype=torch.int32, device=device)
query_start_loc = torch.tensor([0, 1, 5], dtype=torch.int32, device=device)
seq_lens = torch.tensor([40, 20], dtype=torch.int32, device=device)
tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens)

out = paged_attention(*tensors, max_query_len=4, max_seq_len=40)
print(out.shape)
