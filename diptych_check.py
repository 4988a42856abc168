"""Options of the conformance kit for pytest, and the command `diptych-check`.

A module of its own, outside of the packages, that imports pytest alone: pytest loads it wherever Diptych is installed,
also in a repository whose own folder is called `common`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
EPILOG = "exit codes: 0 right, 1 wrong, 2 usage or no such kernel, 5 nothing could run, 130 interrupted"
# name -> (default, type, what it is)
OPTIONS: dict[str, tuple[object, type, str]] = {
    "level": ("smoke", str, "smoke, or full: every case in three dtypes, and random ones"),
    "seed": (None, int, "of the values; drawn and printed where none is given"),
    "adapter": ("auto", str, "paged, flash_attn_varlen, flash_attn_kvcache or protocol; auto looks at the parameters"),
    "device": ("auto", str, "cuda, cpu or auto"),
    "interpret": ("auto", str, "on or off: Triton's interpreter, and its repairs, in the child; auto: on a CPU"),
    "supports": (None, str, "comma-separated features, in place of the kernel's SUPPORTS"),
    "limits": (None, str, "a JSON file in place of the kernel's LIMITS"),
    "time-limit": (60.0, float, "seconds of one call"),
    "report": (None, str, "a JSON file of what became of each case"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("diptych", "conformance of a paged-attention kernel (--pyargs common.conformance)")
    group.addoption("--kernel", metavar="PACKAGE.MODULE:NAME", help="the callable, or a module with launch")
    group.addoption("--case", action="append", default=[], help="this case alone; may be given again")
    for name, (default, kind, what) in OPTIONS.items():
        prefix = "" if name in ("level", "case") else "kit-"
        group.addoption(f"--{prefix}{name}", dest=f"kit_{name}", default=default, type=kind, help=what)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("diptych-check", description="A kernel against the spec.", epilog=EPILOG)
    made.add_argument("kernel", metavar="PACKAGE.MODULE:NAME", help="the callable, or a module with launch")
    made.add_argument("--case", action="append", default=[], help="this case alone; may be given again")
    for name, (default, kind, what) in OPTIONS.items():
        made.add_argument(f"--{name}", default=default, type=kind, help=what)
    return made


def main(words: list[str] | None = None) -> int:
    """The suite by its path, with Diptych's own `common` and no plugins of the folder that it is called in."""
    asked = vars(parser().parse_args(words))
    sys.path.insert(0, str(HERE))
    sys.modules.setdefault("diptych_check", sys.modules[__name__])
    from common import versions  # Diptych's, now

    try:
        versions.admit("check")
    except versions.Unsuitable as error:
        print(error, file=sys.stderr)
        return 2
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    command = [str(HERE / "common" / "conformance.py"), "--kernel", asked["kernel"], "-c", os.devnull]
    command += ["--rootdir", str(HERE), "--noconftest", "-p", "no:cacheprovider", "-q", "--tb=short", "-rN"]
    for case in asked["case"]:
        command += ["--case", case]
    for name in OPTIONS:
        value = asked[name.replace("-", "_")]
        if value is not None:
            command.append(f"--{'' if name == 'level' else 'kit-'}{name}={value}")
    code = int(pytest.main(command, plugins=[sys.modules["diptych_check"]]))
    return {2: 130, 3: 1, 4: 2}.get(code, code)


if __name__ == "__main__":
    sys.exit(main())
