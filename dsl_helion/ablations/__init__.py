"""A kernel that changes one thing of a rung; nothing chooses it. docs/ablations.md has the ideas that were dropped."""
