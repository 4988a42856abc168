"""The tensors on which a workload is checked and timed: page sets with the same values, and an output for each.

A page set is a block table over pages of its own. All hold the same K and V: one reference judges every set, and equal
bits on all sets prove that a kernel depends on the values only.
"""

from collections.abc import Sequence

import torch

from common.cases.ask import between_guards
from common.cases.batch import fill_values
from common.oracle.integrity import Guards, fingerprint, inputs_of
from common.oracle.reference import Expected, reference
from common.spec import PagedBatch, is_per_token
from compare.workloads import Workload
from compare.workloads.cost import cost, key_bytes

MAX_SETS = 512
_DRAWN = ("query", "key_cache", "value_cache", "key", "value")  # the tensors that `fill_values` writes
COPY_BYTES = 2**28  # of K or V at once: a page set may be half of the GPU's memory
MIN_CYCLE_BYTES = 512 * 2**20  # bytes between two visits to a page: more than any last-level cache of the GPU table
POOL_BYTES = 2**33  # that page sets beside the first may take: under a window most of a pool is never read


def page_sets(workload: Workload, llc_bytes: int) -> int:
    """How many page sets let one cycle read at least max(512 MiB, 4 x the last-level cache) of distinct K and V."""
    target = max(MIN_CYCLE_BYTES, 4 * llc_bytes)
    held = max(workload.stats.total_seq_len * workload.shape.num_kv_heads * key_bytes(workload), 1)
    sets = -(-target // max(cost(workload).kv_bytes, 1))
    return max(min(sets, MAX_SETS, 1 + POOL_BYTES // held), 1)


def _used_pages(batch: PagedBatch, lens: Sequence[tuple[int, int]]) -> torch.Tensor:
    """int64: the page ids of every sequence, concatenated."""
    page, table = batch.shape.block_size, batch.block_table.cpu().long()
    rows = [table[i, : -(-seq_len // page)] for i, (_, seq_len) in enumerate(lens)]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)


class Arena:
    """Page sets, outputs, guards and the reference of one workload on one device."""

    def __init__(self, workload: Workload, sets: int, device: torch.device | str, pad_tokens: int = 0) -> None:
        self.workload = workload
        self.device = torch.device(device)
        self.guards = Guards(self.device)
        self.batches = workload.batches(sets, self.device, self.guards, pad_tokens)
        self.features = between_guards(workload.features(self.batches[0]), self.guards, apart=False)
        shape = (*self.batches[0].query.shape[:2], workload.shape.value_lanes)
        self.outs = [self.guards.empty(f"out_{i}", shape, workload.out_dtype) for i in range(sets)]
        self.lse = self.guards.empty("lse", shape[:2], torch.float32)
        self._pages = [_used_pages(batch, workload.lens).to(self.device) for batch in self.batches]
        self._expected: dict[int, Expected] = {}
        self._values = 0
        self._intact: list[int] | None = None
        self._replicate()
        self._fixed = [(t, t.clone()) for name, t in self.inputs() if name not in _DRAWN]

    def inputs(self) -> list[tuple[str, torch.Tensor]]:
        """Every tensor that a kernel reads, by name: the first page set's, and the other block tables."""
        others = [("block_table", batch.block_table) for batch in self.batches[1:]]
        return [*inputs_of(self.batches[0], self.features).items(), *others]

    def _replicate(self) -> None:
        """Copy the pages of set 0, and the scales of their tokens, to every other set."""
        first, scales = self.batches[0], (self.features.key_scale, self.features.value_scale)
        by_page = [first.key_cache, first.value_cache, *filter(is_per_token, scales)]
        for tensor in by_page:
            at_once = max(COPY_BYTES // max(tensor[:1].nbytes, 1), 1)
            source = self._pages[0].split(at_once)
            for pages in self._pages[1:]:
                for part, of in zip(pages.split(at_once), source, strict=True):
                    tensor[part] = tensor[of]

    def set_values(self, index: int) -> None:
        """Put the index-th values into the same buffers: a captured graph then meets another step."""
        if index != self._values:
            self._values = index
            self.refill()

    def refill(self) -> None:
        """Write the present values again, so that damage by a kernel does not count against the next one."""
        for tensor, kept in self._fixed:
            tensor.copy_(kept)
        fill_values(self.batches, self.workload.seed + 7919 * self._values)
        self._replicate()
        self._intact = None

    def compute_expected(self) -> None:
        """Compute the float64 reference of the present values, once for all kernels and page sets."""
        if self._values not in self._expected:
            self._expected[self._values] = reference(self.batches[0], self.features)

    @property
    def expected(self) -> Expected:
        """The reference of the present values, computed on first use."""
        self.compute_expected()
        return self._expected[self._values]

    def poison(self, value: float) -> None:
        """Fill every output, and the LSE, so that an unwritten element shows."""
        for out in self.outs:
            out.fill_(value)
        self.lse.fill_(value)

    @property
    def live_tokens(self) -> int:
        """The number of output rows that belong to a sequence."""
        return self.workload.stats.num_tokens

    @property
    def cycle_bytes(self) -> int:
        """The distinct K and V bytes read in one visit to every page set."""
        return cost(self.workload).kv_bytes * len(self.batches)

    def fingerprint(self) -> list[int]:
        """A sum over the bits of every input, which changes when an input does. Waits for the device."""
        return torch.stack([fingerprint(tensor) for _, tensor in self.inputs()]).tolist()

    def intact_inputs(self) -> list[int]:
        """The fingerprint of the inputs when they were last known to be right."""
        if self._intact is None:
            self._intact = self.fingerprint()
        return self._intact

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
