"""A Helion kernel that takes its features as a dict: (Q K^T) K for one head, on the persistent grid of the target."""

from dataclasses import dataclass

import helion
import helion.language as hl
import torch

from common.spec.kernel import Precision

SUPPORTS = frozenset({"causal", "sinks"})
CONTRACT = Precision()


@dataclass(frozen=True)
class Config:
    rows: int = 16


DEFAULT = Config()


@helion.kernel(static_shapes=False, autotune_effort="none", dot_precision="ieee")
def product(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, scale: float, f: dict) -> None:
    tokens = q.size(0)
    head = hl.specialize(q.size(1))
    for rows in hl.tile(tokens):
        acc = hl.zeros([rows, head], dtype=torch.float32)
        for keys in hl.tile(k.size(0), block_size=16):
            tile = k[keys, :]
            s = hl.dot(q[rows, :], tile.T, out_dtype=torch.float32) * scale
            if f["sinks"] is not None:
                s = s + f["sinks"][0]
            acc = hl.dot(s.to(tile.dtype), tile, acc=acc)
        out[rows, :] = acc.to(out.dtype)


def workspace(shape, capacity, config):
    return None


def launch(batch, features, out, config, workspace, *, lse=None):
    args = (
        batch.query[:, 0],
        batch.key_cache[0, :, 0],
        out[:, 0],
        batch.softmax_scale,
        {"window": None, "sinks": features.sinks},
    )
    bound = product.bind(args)
    bound.compile_config(helion.Config(block_sizes=[config.rows], pid_type="persistent_blocked"))(*args)
