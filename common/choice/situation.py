"""What the config of a kernel may follow from: a shape, the host integers of a batch, a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from common.gpus import Gpu
from common.spec import AttentionShape
from common.spec.metadata import SHORT_QUERY, BatchStats, cdiv


@dataclass(frozen=True)
class Situation:
    """stats: as `common.serving.grid.decided_by` has them."""

    shape: AttentionShape
    stats: BatchStats
    gpu: Gpu

    @property
    def units(self) -> int:
        """SMs or compute units."""
        return max(self.gpu.units, 1)

    @property
    def queries(self) -> int:
        """Tokens of the longest query."""
        return self.stats.max_query_len

    @property
    def keys(self) -> int:
        """Keys of the longest sequence."""
        return self.stats.max_seq_len

    @property
    def short(self) -> bool:
        """Whether every query has at most SHORT_QUERY tokens: reading keys, not products, costs time."""
        return self.queries <= SHORT_QUERY

    @property
    def prompts(self) -> int:
        """Sequences that are no decodes."""
        return max(self.stats.num_seqs - self.stats.num_decodes, 1)

    @property
    def prompt_keys(self) -> int:
        """An upper bound of the keys of the longest prompt: twice the mean of the prompts if all keys were theirs."""
        return max(min(self.keys, 2 * self.stats.total_seq_len // self.prompts), self.queries, 1)

    def long_parts(self, tokens: int) -> int:
        """Parts of the prompts when each is cut into so many tokens and a rest; an upper bound if lengths differ."""
        in_all = max(self.stats.num_tokens - self.stats.num_decodes, 1)
        return min(self.prompts * cdiv(self.queries, tokens), in_all // tokens + self.prompts)
