"""A command as somebody without root, who owns a folder: there a kernel has the rights of who calls."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from common.kit import account

ROOT = Path(__file__).parents[3]


def run(command, folder, **environment):
    """Of the process what it wrote and its exit code. Compiled code stays where Python puts it by itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPYC", "PYTHONDONTW"))}
    if os.geteuid() == 0:
        somebody, why = account.another()
        assert somebody, why
        for path in (folder, *folder.rglob("*")):
            os.chown(path, somebody.uid, somebody.gid, follow_symlinks=False)
        command = replace(somebody, reading=True).command(command)
    how = {"cwd": folder, "env": kept | environment, "capture_output": True, "text": True, "timeout": 500}
    return subprocess.run(command, check=False, **how)


def check(kit, folder, *words):
    """`diptych-check` of the kit in a folder, without a pytest around it."""
    return run([sys.executable, str(kit / "diptych_check.py"), *words, "--interpret", "off"], folder, PYTHONPATH="")
