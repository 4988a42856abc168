"""The wheel's names: what is `common` in a checkout is `diptych.common` in site-packages, and imports say so.

`common` and `compare` are other people's names too. The folders stay as they are; what setuptools has laid out for a
wheel is moved into the folder of `diptych`, and each mention of a module of ours gets that name in front. An editable
install keeps the checkout's names.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGES = ("common", "compare", "dsl_triton", "dsl_helion")
NAME = "|".join(PACKAGES)
DOTTED = re.compile(rf"(?<![\w./-])(?:{NAME})(?:\.\w+)+")
# What else names a module: `from common import x`, `import common`, a DSL's package alone, the command.
PLAIN = (
    (re.compile(rf"^(\s*)from ({NAME}) import ", re.MULTILINE), r"\1from diptych.\2 import "),
    (re.compile(rf"^(\s*)import ({NAME})(?= as |$)", re.MULTILINE), r"\1from diptych import \2"),
    (re.compile(r"\"(dsl_triton|dsl_helion)\""), r'"diptych.\1"'),
    (re.compile(r"python -m compare(?![\w.])"), "python -m diptych.compare"),
)


def is_module(root: Path, dotted: str) -> bool:
    """Whether the first two parts are a package or a module: `compare.graphs`, a mark in old files, is neither."""
    path = root.joinpath(*dotted.split(".")[:2])
    return path.is_dir() or path.with_suffix(".py").is_file()


def renamed(source: str, root: Path) -> str:
    """A module's source as it stands in the wheel. root: the folder that holds the packages under their own names."""

    def named(match: re.Match[str]) -> str:
        return f"diptych.{match.group()}" if is_module(root, match.group()) else match.group()

    source = DOTTED.sub(named, source)
    for pattern, replacement in PLAIN:
        source = pattern.sub(replacement, source)
    return source


class Named(build_py):
    def run(self) -> None:
        into = Path(self.build_lib) / "diptych"
        if not self.editable_mode:
            for left in ("diptych", *PACKAGES):  # by an earlier build, perhaps of modules that are gone
                shutil.rmtree(into.with_name(left), ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        sources = [*into.parent.rglob("*.py"), *into.parent.rglob("templates/*.md")]
        texts = {path: renamed(path.read_text(encoding="utf-8"), into.parent) for path in sources}
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        for package in PACKAGES:
            (into.parent / package).rename(into / package)


setup(cmdclass={"build_py": Named})
