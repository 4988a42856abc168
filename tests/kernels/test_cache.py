"""New K and V in their pages, bit for bit as the reference writes them; nothing else is touched."""

import pytest
import torch

from cache_cases import QUANTISED_WRITES, WRITES, judge
from common.spec import SpecError
from common.spec.cache import CacheWrite
from dsls import slow_in_helion

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


PLAIN = [pytest.param(case, DTYPES[n % 3], id=case.name) for n, case in enumerate(WRITES)]
QUANTISED = [slow_in_helion((case, DTYPES[n % 3]), id=case.name) for n, case in enumerate(QUANTISED_WRITES)]


@pytest.mark.parametrize(("case", "dtype"), PLAIN + QUANTISED)
def test_the_pool_and_its_scales_are_what_the_reference_makes_of_them(dsl, case, dtype):
    judge(dsl.module("cache"), case, dtype)


@pytest.mark.parametrize("block_tokens", [1, 16])
def test_any_number_of_tokens_in_a_program_writes_the_same(dsl, block_tokens):
    judge(dsl.module("cache"), WRITES[2], torch.bfloat16, block_tokens=block_tokens)


def test_bad_input_is_refused_before_a_launch(dsl):
    pool = torch.zeros(2, 8, 2, 16)
    write = CacheWrite(torch.ones(3, 2, 16), torch.ones(3, 2, 8), pool, pool.clone(), torch.arange(3))
    with pytest.raises(SpecError, match="value: found"):
        dsl.module("cache").launch(write)
    assert not bool(pool.any())
