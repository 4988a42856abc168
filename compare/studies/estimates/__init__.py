"""Estimates held against times: of this GPU, and of others as their vendors published them."""
