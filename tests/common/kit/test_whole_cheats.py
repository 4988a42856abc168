"""Cheats against a whole run of `diptych-check`, by somebody without root: what is left behind the last call."""

import hashlib
import json
import sys
import time

import pytest
import unprivileged
from unprivileged import ROOT

pytestmark = pytest.mark.slow
HEAD = """
import glob, importlib.util, marshal, os, struct, sys, tempfile
SUPPORTS = {"causal"}
def kernel(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, out):
    out.zero_()
"""
# Compiled code of a module that torch imports when it is first called, in each folder that a judge might keep such in.
LATER_IMPORTS = """
    import colorsys, fractions
    for module in (colorsys, fractions):
        source = module.__file__
        text = open(source).read() + '''
import sys
if "common.oracle.tolerance" in sys.modules:
    verdict = sys.modules["common.oracle.tolerance"].Verdict
    verdict.ok = property(lambda self: True, lambda self, value: None)
'''
        found = os.stat(source)
        header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(found.st_mtime), found.st_size)
        code = header + marshal.dumps(compile(text, source, "exec"))
        for folder in (None, *glob.glob(os.path.join(tempfile.gettempdir(), "diptych-*"))):
            sys.pycache_prefix = folder
            path = importlib.util.cache_from_source(source)
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                open(path, "wb").write(code)
            except OSError:
                pass
"""
REWRITER = """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            source = '''
import os, time
for _ in range(3000):
    with open("report.json.new", "w") as file:
        file.write('{"tampered": false, "cases": []}')
    os.replace("report.json.new", "report.json")
    time.sleep(0.01)
'''
            os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", source], {})
        os._exit(0)
    os.wait()
"""


def test_compiled_code_of_a_later_import_is_not_believed(tmp_path):
    (tmp_path / "cheat.py").write_text(HEAD + LATER_IMPORTS)
    done = unprivileged.check(ROOT, tmp_path, "cheat:kernel", "--case", "batch-1", "--no-minimise")
    assert done.returncode == 1 and "WRONG in 1 of 1 cases" in done.stdout, done.stdout + done.stderr


def test_a_daemon_does_not_have_the_last_word_on_a_report(tmp_path):
    (tmp_path / "cheat.py").write_text(HEAD + REWRITER)
    words = ("cheat:kernel", "--case", "batch-1", "--no-minimise", "--report", "report.json")
    done = unprivileged.check(ROOT, tmp_path, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    time.sleep(0.5)
    raw = (tmp_path / "report.json").read_bytes()
    assert f"sha256 {hashlib.sha256(raw).hexdigest()}" in done.stdout
    report = json.loads(raw)
    assert [case["status"] for case in report["cases"]] == ["crash"] and not report["isolated"]


LISTING = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import diptych_check
from common.kit.isolate import Isolated
start, before = Isolated._start, set()
Isolated._start = lambda self: (before.update(sys.modules) if not before else None, start(self))[1]
code = diptych_check.main(sys.argv[1:])
print("imported later:", *sorted(set(sys.modules) - before)[:20])
sys.exit(code)
"""


@pytest.mark.parametrize("name", ["right", "window_one_too_wide"])
def test_a_judge_imports_nothing_behind_the_first_kernel(name, tmp_path):
    """Through a right case, a wrong one, its shrinking and the report; and the verdict says who a kernel runs as."""
    (tmp_path / "listing.py").write_text(LISTING)
    words = [f"kit_callables:{name}", "--interpret", "off", "--report", "report.json"]
    words += [word for case in ("batch-1", "window-page", "sinks-of-60") for word in ("--case", case)]
    command = [sys.executable, "listing.py", str(ROOT), *words]
    done = unprivileged.run(command, tmp_path, PYTHONPATH=str(ROOT / "tests" / "common" / "kit"))
    assert done.stdout.splitlines()[-1] == "imported later:", done.stdout + done.stderr
    assert done.returncode == (name != "right")
    if name == "right":
        assert "asked; not isolated: without root a kernel has the rights of who calls" in done.stdout
