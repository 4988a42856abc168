"""FlashInfer's POD attention: prompts and decodes of one batch in one launch, each by a kernel of its own kind."""

from dataclasses import dataclass

import torch

from common.spec import Features, PagedBatch, UnsupportedFeature
from common.spec.metadata import lens_of
from compare.competitors.baselines.flashinfer_paths import Path, Plan, library, options, pages_of, sizes


@dataclass(frozen=True)
class Pod(Path):
    """BatchPODWithPagedKVCacheWrapper. A batch of one kind alone has nothing to overlap and is refused."""

    def plan(self, batch: PagedBatch, features: Features, workspace: Plan) -> Plan:
        lens = list(lens_of(batch.query_start_loc, batch.seq_lens))
        prompts = [i for i, (query_len, _) in enumerate(lens) if query_len > 1]
        decodes = [i for i, (query_len, _) in enumerate(lens) if query_len == 1]
        if not prompts or not decodes:
            raise UnsupportedFeature(self.name, "one kind of sequence", "prompts beside decodes")
        parts = pages_of(batch, prompts), pages_of(batch, decodes)
        wrapper = library.BatchPODWithPagedKVCacheWrapper(workspace.scratch, "NHD")
        arguments = [x for p in parts for x in (p.query_indptr, p.indptr, p.indices, p.last_page_len)]
        wrapper.plan(*arguments, *sizes(batch.shape), **options(batch, features))
        return Plan(workspace.scratch, wrapper, parts)

    def run(self, batch: PagedBatch, out: torch.Tensor, ready: Plan) -> None:
        """Has no `out`: the copies are in the time; where prompts and decodes alternate the gather of queries too."""
        caches, (prompts, decodes) = (batch.key_cache, batch.value_cache), ready.parts
        queries = batch.query[prompts.tokens], batch.query[decodes.tokens]
        found = ready.wrapper.run(queries[0], caches, queries[1], caches, causal_p=True)
        for part, rows in zip(ready.parts, found, strict=True):
            out[part.tokens] = rows


RELEASE = ("flashinfer-python", "0.7.2", "", "Apache-2.0", "CUDA", 0)
PATH = Pod("baseline/flashinfer_pod", frozenset({"causal", "sliding_window"}))
SUPPORTS, CONTRACT, DEFAULT = PATH.supports, Path.CONTRACT, None
workspace, prepare, launch = PATH.workspace, PATH.prepare, PATH.launch
