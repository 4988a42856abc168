"""Processes that a test starts: this one interprets kernels, a child that compiles or binds them must not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def compiling(*folders: Path | str, **more: str) -> dict[str, str]:
    """This environment without TRITON_INTERPRET; `folders` are where the child looks for modules first."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if folders:
        kept["PYTHONPATH"] = os.pathsep.join([*map(str, folders), kept.get("PYTHONPATH", "")])
    return kept | more


def said(command: list[str], environment: dict[str, str], limit_s: float = 600) -> list[str]:
    """The lines that a Python child prints; it must exit with 0."""
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def answer(command: list[str], environment: dict[str, str], limit_s: float = 600) -> Any:
    """Its last line, which is JSON."""
    return json.loads(said(command, environment, limit_s)[-1])
