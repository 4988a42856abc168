"""A plan, which owns its scratch, and its call in a CUDA graph: the text of docs/engines.md."""

import torch
from diptych.common.spec import AttentionShape
from diptych.dsl_triton import plan_paged_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
query = torch.randn(5, 8, 64, device=device)
key_cache, value_cache = torch.randn(2, 16, 16, 2, 64, device=device)
block_table = torch.tensor([[3, 7, 1], [0, 5, 2]], dtype=torch.int32, device=device)
query_start_loc = torch.tensor([0, 1, 5], dtype=torch.int32, device=device)
seq_lens = torch.tensor([40, 20], dtype=torch.int32, device=device)
tensors = (query, key_cache, value_cache, block_table, query_start_loc, seq_lens)
out = torch.zeros_like(query)

plan = plan_paged_attention(AttentionShape(8, 2, 64, 16, query.dtype), 8, 2, 48, device)  # up to 8 tokens, 2 x 48 keys
plan.warmup()
if device == "cuda":
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(*tensors, max_query_len=4, max_seq_len=40, out=out)
    graph.replay()  # again after query, the table and lengths have been filled anew, in place
else:
    plan(*tensors, max_query_len=4, max_seq_len=40, out=out)
print(out.shape, "calls that compiled something after the warm-up:", plan.unmet)
