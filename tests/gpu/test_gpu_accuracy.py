"""8-bit attention keeps its accuracy however long the context is: positive V, whose sums do not cancel."""

import pytest

from common import gpus
from compare.studies.accuracy import BIAS, HEADS, KERNELS, RELATIVE, measured, workload


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("query_len", [1, 64])
@pytest.mark.parametrize("keys", [2048, 131072])
@pytest.mark.parametrize("heads", [HEADS, (4, 2, 256)], ids=str)
def test_nothing_is_lost_over_long_contexts(kernel, query_len, keys, heads):
    gpu = gpus.detect()
    found = measured(kernel, workload(gpu, True, query_len, keys, heads), gpu, here=True)
    assert found["relative"] <= RELATIVE and abs(found["bias"]) <= BIAS, found
