"""No planted cheat passes, and the kit's words say what it did wrong."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.kit.isolate import Limits
from common.kit.kit import Kit

pytestmark = pytest.mark.usefixtures("kernels_are_importable")

ROOT = Path(__file__).parents[3]
CHEATS = {  # kernel -> status, what the reason must say
    "kept_by_address": ("incorrect", "call 2, other values at the same addresses"),
    "kept_by_block_table": ("incorrect", "call 2, other values at the same addresses"),
    "first_call_alone": ("incorrect", "call 2, other values at the same addresses: W: found nan"),
    "easier_inputs": ("incorrect", "call 1: changed its input value_cache"),
    "search_for_the_reference": ("incorrect", "call 1: W: found"),
    "lazy_subclass": ("incorrect", "found a Lazy, allowed a torch.Tensor"),
    "late_thread": ("incorrect", "call 1: W: found nan"),
    "patched_check": ("incorrect", "call 1: W: found 0"),
    "own_verdict": ("crash", "wrote into the channel to the kit"),
    "forged_reply": ("incorrect", "call 1: "),
    "patched_timer": ("timeout", "no answer within"),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_does_not_pass(name, child):
    status, words = CHEATS[name]
    kit = Kit(f"kit_cheats:{name}", 11, child)
    assert kit.declared.supports == {"causal"}
    child.limits = Limits(call_s=3.0 if name == "patched_timer" else 60.0)
    found = kit.once("all-decode")
    assert (found.status, words in found.reason) == (status, True), found
    if name == "patched_check":
        child.close()  # its patches would stand in the way of the next one


def test_there_are_ten_of_them_at_least():
    assert len(CHEATS) >= 10


SPOILER = """
from pathlib import Path
SUPPORTS = {"causal"}
def kernel(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, out):
    Path("tolerance_of_the_kit").resolve().write_text("def check(*_, **__): ...")
    out.zero_()
"""


@pytest.mark.slow
def test_a_kernel_that_writes_into_the_kit_is_found_out(tmp_path):
    """On a copy of the kit: its sources are hashed before and after."""
    kit = tmp_path / "kit"
    shutil.copytree(ROOT / "common", kit / "common", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "diptych_check.py", kit)
    spoiled = SPOILER.replace('"tolerance_of_the_kit"', repr(str(kit / "common" / "tolerance.py")))
    (tmp_path / "spoiler.py").write_text(spoiled)
    command = [
        sys.executable,
        str(kit / "diptych_check.py"),
        "spoiler:kernel",
        "--interpret",
        "off",
        "--case",
        "batch-1",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "files of the kit changed while the kernel ran" in done.stdout
