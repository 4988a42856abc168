"""No planted cheat passes, and the kit's words say what it did wrong."""

import pytest

from common.kit.isolate import Limits
from common.kit.kit import Kit
from common.kit.levels import ELSEWHERE

pytestmark = pytest.mark.usefixtures("kernels_are_importable")

CHEATS = {  # kernel -> status, what the reason must say
    "kept_by_address": ("incorrect", "call 2, other values at the same addresses"),
    "kept_by_block_table": ("incorrect", "call 2, other values at the same addresses"),
    "keys_kept_by_address": ("incorrect", "call 2, other values at the same addresses"),
    "first_call_alone": ("incorrect", "call 2, other values at the same addresses: out (worst rounding): found nan"),
    "easier_inputs": ("incorrect", "call 1: changed its input value_cache"),
    # the first call may find what another kernel of this process left there
    "search_for_the_reference": ("incorrect", "out (worst rounding): found"),
    "lazy_subclass": ("incorrect", "found a Lazy, allowed a torch.Tensor"),
    "lazy_by_a_mode": ("incorrect", "left torch in another mode"),
    "late_thread": ("incorrect", "call 1: out (worst rounding): found nan"),
    "patched_check": ("incorrect", "call 1: out (worst rounding): found 0"),
    "own_verdict": ("crash", "wrote into the channel to the kit"),
    "forged_reply": ("incorrect", "call 1: "),
    "patched_timer": ("timeout", "no answer within"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_does_not_pass(name, child):
    status, words = CHEATS[name]
    kit = Kit(f"kit_cheats:{name}", 11, child)
    assert kit.declared.supports == {"causal"}
    child.limits = Limits(call_s=2.0 if name == "patched_timer" else 60.0)
    found = kit.once("all-decode")
    assert (found.status, words in found.reason) == (status, True), found
    if name in ("patched_check", "lazy_by_a_mode"):
        child.close()  # what they left would stand in the way of the next one


def test_an_output_that_changes_behind_the_last_call_does_not_pass(child):
    found = Kit("kit_cheats:clears_later", 11, child).once(ELSEWHERE)
    assert (found.status, found.reason) == ("incorrect", "call 4, once it had returned: wrote out"), found
