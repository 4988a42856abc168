"""`cache.py` of both DSLs under the protocol of an attention kernel, so that the compiling child takes it."""

import importlib

import torch

from common.spec.cache import CacheWrite
from common.spec.kernel import Precision


class Writes:
    SUPPORTS = frozenset({"causal", "full_graph"})
    CONTRACT = Precision()

    def __init__(self, dsl):
        self.dsl = dsl

    @property
    def DEFAULT(self):
        return importlib.import_module(f"dsl_{self.dsl}.cache").DEFAULT

    def workspace(self, shape, capacity, config):
        return None

    def launch(self, batch, features, out, config, workspace, *, lse=None):
        slots = torch.zeros(batch.num_tokens, dtype=torch.int64)
        write = CacheWrite(batch.key, batch.value, batch.key_cache, batch.value_cache, slots)
        importlib.import_module(f"dsl_{self.dsl}.cache").launch(write, config)


triton, helion = Writes("triton"), Writes("helion")
