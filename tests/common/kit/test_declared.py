"""What a kernel or its caller declares is read with suspicion: a typed error that names it, or what was meant."""

import pytest
import torch

from common.kit import isolated
from common.kit.declared import Declared, limits_of, supports_of
from common.spec import SpecError
from common.spec.precision import Precision

SAID = {"adapter": "paged", "supports": ["causal"], "limits": {}, "contract": {}}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("supports", ["alibbi"], "SUPPORTS: found 'alibbi', allowed alibi"),
        ("supports", [" causal"], "SUPPORTS: found ' causal'"),
        ("supports", "causal", "SUPPORTS: found 'causal', allowed a set of names"),
        ("supports", 3, "SUPPORTS: found 3"),
        ("limits", [], r"LIMITS: found \[\]"),
        ("limits", {"weather": ["fair"]}, "LIMITS: found weather, allowed dtype"),
        ("limits", {"head_size": "64"}, "LIMITS, head_size: found '64', allowed a list of integers"),
        ("limits", {"head_size": []}, "LIMITS, head_size"),
        ("limits", {"block_size": [16.0]}, "LIMITS, block_size"),
        ("limits", {"dtype": ["float17"]}, "LIMITS, dtype"),
        ("limits", {"queries_per_kv": [True]}, "LIMITS, queries_per_kv"),
        ("limits", {"max_query_len": 0}, "LIMITS, max_query_len: found 0, allowed an integer of at least 1"),
        ("limits", {"deterministic": "no"}, "LIMITS, deterministic: found 'no', allowed true or false"),
        ("limits", {"cases": ["table-*"]}, "LIMITS, cases"),
        ("limits", {"cases": {"table-*": 3}}, "LIMITS, cases"),
        ("contract", {"accumulator": "float8_e8m0fnu"}, "contract.accumulator"),
        ("contract", {"accumulator": "nn"}, "contract.accumulator: found 'nn', allowed float32"),
        ("contract", {"dot": "nonsense"}, "contract.dot: found 'nonsense', allowed ieee, tf32"),
        ("contract", {"accumulators": "float32"}, "contract: found 'accumulators'"),
        ("contract", "tf32", "contract: found 'tf32', allowed a mapping"),
    ],
)
def test_what_means_nothing_is_refused_by_name(field, value, words):
    with pytest.raises(SpecError, match=words):
        Declared.of(SAID | {field: value})


def test_what_is_meant_is_read():
    limits = {"dtype": ["float16", "float8_e4m3fn"], "block_size": [16], "deterministic": False, "cases": {"x": "why"}}
    said = SAID | {"supports": ["causal", "lse", "full_graph"], "limits": limits, "contract": {"dot": "tf32"}}
    found = Declared.of(said)
    assert (found.supports, found.limits) == ({"causal", "lse", "full_graph"}, limits)
    assert found.contract == Precision(dot="tf32") and found.supports_given
    assert Declared.of(SAID | {"supports": None}).supports == {"causal"}


@pytest.mark.parametrize(
    ("found", "plain"),
    [
        (torch.float16, "float16"), ((torch.float16, "x"), ["float16", "x"]), ({"b", "a"}, ["a", "b"]),
        ({1: {2: None}}, {"1": {"2": None}}), (object, "<class 'object'>"),
    ],
)  # fmt: skip
def test_a_declaration_reaches_the_kit_as_plain_values(found, plain):
    assert isolated._plain(found) == plain


async def later(*tensors, out):
    pass


def yields(*tensors, out):
    yield


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (later, "found a coroutine function, allowed one that computes"), (yields, "found a generator function"),
        (lambda query: None, "too many positional arguments; a call gives query, key_cache"),
        (lambda *tensors, flag, out: None, "missing a required .*'flag'"), (Declared, "found the class Declared"),
    ],
)  # fmt: skip
def test_what_no_call_can_satisfy_is_refused_at_once(target, words):
    with pytest.raises(TypeError, match=words):
        isolated.described("here", target, "auto")


def test_torchscript_is_given_what_its_schema_names():
    """Such a function has no signature: it was given every keyword, and torch refused the first."""
    six = (torch.ones(2),) * 6
    traced = torch.jit.trace(lambda query, key, value, table, starts, lengths: 2 * query, six)
    module = torch.nn.Module()
    module.forward = lambda query, key, value, table, starts, lengths, softmax_scale: query
    for target, more in ((traced, set()), (module, {"softmax_scale"})):
        names, anything = isolated.accepted(target)
        assert names == {"query", "key", "value", "table", "starts", "lengths"} | more and not anything
        assert isolated.described("here", target, "auto")["adapter"] == "paged"


def test_the_caller_is_held_to_the_same():
    with pytest.raises(SpecError, match="SUPPORTS: found 'lsé'"):
        supports_of(["lsé"])
    with pytest.raises(SpecError, match="LIMITS, head_size"):
        limits_of({"head_size": 64})


def test_an_lse_is_always_given_to_a_kernel_that_cannot_do_without():
    def needs(query, *, out, lse):
        pass

    def may(query, *, out, lse=None):
        pass

    def returns(query, *, return_lse=False):
        pass

    assert [isolated.without_lse(one, "paged") for one in (needs, may, returns)] == [False, True, True]
    assert isolated.without_lse(needs, "protocol")
