"""An ablation is a kernel like any other: right on the cases where its one change could be wrong."""

import pytest

from common.cases.named import BY_NAME
from dsl_helion.ablations import idiomatic
from dsls import in_helion, slow_in_helion
from kernel_cases import conform

CASES = ["everything-at-once", *map(slow_in_helion, ("one-empty-sequence", "query-128", "non-causal-with-window"))]


@in_helion
@pytest.mark.parametrize("case", [*CASES, *map(slow_in_helion, ("values-unseen-nan", "unaligned-and-odd-strides"))])
def test_tiles_of_helion_alone_conform(dsl, case: str) -> None:
    """A ratio of 5, one of 1, keys that no row sees, strides that only two indices reach."""
    conform(idiomatic, BY_NAME[case], idiomatic.DEFAULT)
