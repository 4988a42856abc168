"""FlashInfer's paged decode: one query token a sequence."""

from dataclasses import dataclass

import torch

from common.spec import Features, PagedBatch, UnsupportedFeature
from compare.competitors.baselines.flashinfer_paths import Path, Plan, library, options, pages_of, sizes

TENSOR_CORES_FROM = 4  # query heads a KV head: from there on engines ask for tensor cores, which need rows to fill


@dataclass(frozen=True)
class Decode(Path):
    """BatchDecodeWithPagedKVCacheWrapper."""

    def refuse(self, batch: PagedBatch, features: Features) -> None:
        super().refuse(batch, features)
        if batch.stats.max_query_len > 1 or batch.num_tokens != batch.num_seqs:
            raise UnsupportedFeature(self.name, "query lengths other than 1", "decodes alone")

    def plan(self, batch: PagedBatch, features: Features, workspace: Plan) -> Plan:
        pages = pages_of(batch)
        many = batch.shape.queries_per_kv >= TENSOR_CORES_FROM
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace.scratch, "NHD", use_tensor_cores=many)
        wrapper.plan(
            pages.indptr,
            pages.indices,
            pages.last_page_len,
            *sizes(batch.shape),
            logits_soft_cap=features.softcap or 0.0,
            **options(batch, features),
        )
        return Plan(workspace.scratch, wrapper, (pages,))

    def run(self, batch: PagedBatch, out: torch.Tensor, ready: Plan) -> None:
        ready.wrapper.run(batch.query, (batch.key_cache, batch.value_cache), out=out)


RELEASE = ("flashinfer-python", "0.7.2", "", "Apache-2.0", "CUDA", 0)
PATH = Decode("baseline/flashinfer_decode")
SUPPORTS, CONTRACT, DEFAULT = PATH.supports, Path.CONTRACT, None
workspace, prepare, launch = PATH.workspace, PATH.prepare, PATH.launch
