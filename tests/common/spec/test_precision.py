"""A contract is one of those that kernels ship with: everything else is a typed error."""

import pytest
import torch

from common.spec import SpecError
from common.spec.precision import ALLOWED, Precision


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accumulator", "float8_e8m0fnu"), ("accumulator", "nn"), ("accumulator", "float16"),
        ("accumulator", "bfloat16"), ("accumulator", 32), ("accumulator", None), ("accumulator", ["float32"]),
        ("accumulator", torch.float8_e8m0fnu), ("probabilities", "float8_e5m2"), ("probabilities", "float4_e2m1fn_x2"),
        ("probabilities", "float8_e8m0fnu"), ("probabilities", "bool"), ("dot", "nonsense"), ("dot", 1), ("dot", {}),
        ("exp2", "linear"), ("tanh", "x"), ("sums", "float16"), ("sums", "float8_e4m3fn"), ("weather", "fair"),
    ],
)  # fmt: skip
def test_what_no_kernel_has_is_refused(field, value):
    with pytest.raises(SpecError, match=rf"contract(\.{field})?: found .*, allowed "):
        Precision.of({field: value})


@pytest.mark.parametrize("said", [None, 7, "tf32", ["dot"]])
def test_a_contract_is_a_mapping(said):
    with pytest.raises(SpecError, match="contract: found"):
        Precision.of(said)


@pytest.mark.parametrize("contract", list(Precision.all()), ids=str)
def test_plain_words_are_read_back(contract):
    assert Precision.of(contract.words()) == contract
    assert (str(contract) == "default") == (contract == Precision())


def test_what_is_weaker_than_the_default_is_named():
    assert Precision().weaker == Precision(torch.float32).weaker == {}
    weak = Precision(torch.float8_e4m3fn, dot="tf32", sums=torch.bfloat16)
    assert weak.weaker == {"probabilities": "float8_e4m3fn", "dot": "tf32", "sums": "bfloat16"}
    assert str(weak) == "probabilities float8_e4m3fn, dot tf32, sums bfloat16"


def test_the_first_of_each_list_is_the_default():
    assert Precision(**{name: allowed[0] for name, allowed in ALLOWED.items()}) == Precision()
