"""Trees that `tune` fitted, a file a GPU; each answers for what its MEASURED lists."""
