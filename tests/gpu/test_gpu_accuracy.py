"""8-bit attention keeps its accuracy however long the context is: positive V, whose sums do not cancel."""

import pytest
import torch

from common import gpus
from common.cases.ask import Ask
from common.oracle.reference import reference
from common.spec import AttentionShape
from common.spec.kernel import Capacity, asked_of
from compare.competitors import registry
from compare.workloads import Workload
from compare.workloads.workload import empty_output

RELATIVE, BIAS = 0.005, 0.001  # |error| / |output| over the call, and the mean of error / output


def error(kernel_id, query_len, keys, heads):
    """(relative, bias) of one sequence over a cache in e4m3, with an fp8 query."""
    kernel, shape = registry.load(kernel_id), AttentionShape(*heads, 16, torch.float8_e4m3fn)
    row = Workload(f"q{query_len}s{keys}", ((query_len, keys),), shape, Ask(scales="one"))
    batch = row.batches(1, "cuda")[0]
    features, out = row.features(batch), empty_output(batch, row.features(batch))
    batch.value_cache.view(torch.uint8).bitwise_and_(0x7F)  # clear the signs
    needs = asked_of(batch, features)
    config, _ = registry.default_config(kernel_id, kernel, shape, row.stats, gpus.detect(), needs=needs)
    kernel.launch(batch, features, out, config, kernel.workspace(shape, Capacity.of(batch), config))
    expected = reference(batch, features).out
    wrong = out.double() - expected
    return float(wrong.norm() / expected.norm()), float((wrong / expected).mean())


@pytest.mark.parametrize("kernel", ["triton/auto", "helion/auto"])
@pytest.mark.parametrize("query_len", [1, 64])
@pytest.mark.parametrize("keys", [2048, 131072])
@pytest.mark.parametrize("heads", [(8, 2, 128), (4, 2, 256)], ids=str)
def test_nothing_is_lost_over_long_contexts(kernel, query_len, keys, heads):
    relative, bias = error(kernel, query_len, keys, heads)
    assert relative <= RELATIVE and abs(bias) <= BIAS
