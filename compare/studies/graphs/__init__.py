"""One captured graph for all batches against a graph for each batch size."""
