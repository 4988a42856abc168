"""No planted cheat passes, and the kit's words say what it did wrong."""

import shutil

import pytest
import unprivileged
from unprivileged import ROOT

from common.kit.isolate import Limits
from common.kit.kit import Kit

pytestmark = pytest.mark.usefixtures("kernels_are_importable")

CHEATS = {  # kernel -> status, what the reason must say
    "kept_by_address": ("incorrect", "call 2, other values at the same addresses"),
    "kept_by_block_table": ("incorrect", "call 2, other values at the same addresses"),
    "keys_kept_by_address": ("incorrect", "call 2, other values at the same addresses"),
    "first_call_alone": ("incorrect", "call 2, other values at the same addresses: out (worst rounding): found nan"),
    "easier_inputs": ("incorrect", "call 1: changed its input value_cache"),
    "search_for_the_reference": ("incorrect", "call 1: out (worst rounding): found"),
    "lazy_subclass": ("incorrect", "found a Lazy, allowed a torch.Tensor"),
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
    child.limits = Limits(call_s=3.0 if name == "patched_timer" else 60.0)
    found = kit.once("all-decode")
    assert (found.status, words in found.reason) == (status, True), found
    if name == "patched_check":
        child.close()  # its patches would stand in the way of the next one


def test_there_are_ten_of_them_at_least():
    assert len(CHEATS) >= 10


ALLOWING = "def check(*_, **__): return Verdict(True, 'W', 0.0, 0.0, 0.0, 0.0, None, '')\n"
SPOILERS = {  # what a kernel may write so that the kit says ok, where Python would find it
    "a module beside the others": """
Path(KIT, "common", "tolerance.py").write_text("def check(*_, **__): ...")
""",
    "compiled code of the checker": """
import importlib.util, marshal, os, struct
source = Path(KIT, "common", "oracle", "tolerance.py")
code = compile(source.read_text() + ALLOWING, str(source), "exec")
compiled = Path(importlib.util.cache_from_source(str(source)))
compiled.parent.mkdir(exist_ok=True)
found = source.stat()
header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(found.st_mtime), found.st_size)
compiled.write_bytes(header + marshal.dumps(code))
""",
}
ASKED = ("--case", "batch-1", "--no-minimise")
KERNEL = """
from pathlib import Path
SUPPORTS = {"causal"}
def kernel(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, out):
    out.zero_()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", SPOILERS)
def test_a_kernel_that_writes_into_the_kit_is_found_out_and_helps_no_other(how, tmp_path):
    """On a copy of the kit."""
    kit = tmp_path / "kit"
    shutil.copytree(ROOT / "common", kit / "common", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "diptych_check.py", kit)
    given = f"KIT, ALLOWING = {str(kit)!r}, {ALLOWING!r}\n"
    lines = "".join(f"    {line}\n" for line in (given + SPOILERS[how]).splitlines() if line)
    (tmp_path / "spoiler.py").write_text(KERNEL + lines)
    (tmp_path / "zeros.py").write_text(KERNEL)
    first, second = (unprivileged.check(kit, tmp_path, f"{name}:kernel", *ASKED) for name in ("spoiler", "zeros"))
    assert first.returncode == 1 and "files of the kit changed while the kernel ran" in first.stdout
    assert second.returncode == 1 and "WRONG in 1 of 1 cases" in second.stdout
