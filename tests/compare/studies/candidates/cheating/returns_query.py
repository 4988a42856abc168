"""The input as the output."""


def paged_attention(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale):
    return query
