"""Competitors from outside, each optional, each the same Protocol."""
