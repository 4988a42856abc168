"""The Triton q_block without its causal mask: right for a decode, wrong for a prompt."""

from dataclasses import replace

from dsl_triton.q_block import CONTRACT, DEFAULT, SUPPORTS, workspace
from dsl_triton.q_block import launch as _launch

__all__ = ["CONTRACT", "DEFAULT", "SUPPORTS", "launch", "workspace"]


def launch(batch, features, out, config, workspace, *, lse=None):
    _launch(batch, replace(features, causal=False), out, config, workspace, lse=lse)
