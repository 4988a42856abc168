"""Configs that nobody measured on this GPU: from shapes, batches and what a GPU has."""
