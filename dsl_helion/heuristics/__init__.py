"""Which config for which batch: short if-trees over host integers."""
