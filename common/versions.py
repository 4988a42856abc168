"""torch, triton and helion: which versions are here, which are needed, and which sets of them passed (tested.toml).

In: the names of packages. Out: nothing where they will do; Unsuitable, or a line about a set that nobody tested.
Imports none of them: their metadata says enough.
"""

import functools
import importlib.util
import os
import re
import sys
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_name("tested.toml").read_text(encoding="utf-8"))
DISTRIBUTIONS: dict[str, list[str]] = _TABLE["distributions"]
PACKAGES = tuple(DISTRIBUTIONS)
NEEDS: dict[str, tuple[str, ...]] = {who: tuple(packages) for who, packages in _TABLE["needs"].items()}
LIBRARIES: dict[str, dict[str, str]] = _TABLE["libraries"]  # distribution -> its module
SETS: tuple[dict[str, str], ...] = tuple(_TABLE["set"])
UNKNOWN = "of unknown version"  # of a module without metadata, such as a checkout on PYTHONPATH
TEST = "python -m compare run --gpu h200"
SAID = "DIPTYCH_SAID_UNTESTED"  # environment variable by which a parent tells its children that it has warned


class Unsuitable(ImportError):
    """A package is absent or too old; the message is one line: what was found, what is needed, pip's command."""


@functools.cache
def here(package: str) -> str:
    """The installed version; UNKNOWN for a module without metadata, empty where there is no such module."""
    for name in DISTRIBUTIONS[package]:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    try:
        return UNKNOWN if importlib.util.find_spec(package) else ""
    except (ImportError, ValueError):
        return ""


def series(version: str) -> tuple[int, ...]:
    """`3.7.1+cpu` -> (3, 7): a tested set also stands for other patches of its minor versions."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:2]))


def requirement(package: str, on: str = "") -> str:
    """The versions that passed, oldest to newest, as pip reads them: `triton>=3.6,<3.10`. on: of CPU sets or GPU
    sets."""
    passed = [series(one[package]) for one in SETS if on in ("", one["on"])]
    (low, at), (high, last) = min(passed), max(passed)
    return f"{package}>={low}.{at},<{high}.{last + 1}"


def ensure(who: str, *, welcome: tuple[str, ...] = (), interpreted: bool | None = None) -> None:
    """Raise Unsuitable unless what `who` needs (NEEDS, LIBRARIES) is here, and neither that nor what is here of
    `welcome` is too old. interpreted: whether kernels run in Triton's interpreter, which needs a newer one; None: as
    TRITON_INTERPRET says."""
    if interpreted is None:
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    told, wanted, labels = [], [], []
    absent = [name for name, module in LIBRARIES.get(who, {}).items() if importlib.util.find_spec(module) is None]
    if absent:
        raise Unsuitable(f"{', '.join(absent)}: found none, needed for `diptych`: pip install '.[{who}]' in a checkout")
    for package in dict.fromkeys((*NEEDS[who], *welcome)):
        found, allowed = here(package), requirement(package, "cpu" if interpreted and package == "triton" else "")
        if (not found and package in NEEDS[who]) or _is_older(found, allowed):
            told.append(f"{package}: found {found or 'none'}, needed {allowed.removeprefix(package)}")
            wanted.append(f"'{allowed}'")
            labels += [label for label in [found.partition("+")[2]] if label not in ("", "cpu")]
    if told:
        where = f" (from where the {labels[0]} build came from)" if labels else ""
        raise Unsuitable(f"{'; '.join(told)}: pip install {' '.join(wanted)}{where}")


def _is_older(found: str, allowed: str) -> bool:
    return found not in ("", UNKNOWN) and series(found) < series(allowed.partition(",")[0])


def tested(packages: tuple[str, ...] = PACKAGES) -> str:
    """The newest tested set whose minor versions are installed; empty where there is none. Absent packages do not
    count."""
    known = {package: series(version) for package in packages if (version := here(package))}
    fits = [one for one in SETS if all(series(one[package]) == version for package, version in known.items())]
    return fits[-1]["name"] if fits else ""


def untested(packages: tuple[str, ...] = PACKAGES) -> str:
    """A line that warns of an untested set and names the command that tests it; empty where the set was tested."""
    if tested(packages):
        return ""
    found = ", ".join(f"{package} {version}" for package in packages if (version := here(package)))
    return f"{found}: untested together; `{TEST}` tests them"


def admit(who: str) -> None:
    """For an entry point: `ensure`, and say once on stderr where the set is untested. Raises Unsuitable."""
    ensure(who, welcome=PACKAGES)
    if SAID not in os.environ and (line := untested()):
        os.environ[SAID] = "1"
        print(line, file=sys.stderr)


@functools.cache
def remark(who: str) -> None:
    """Warn once, at a call of a kernel family (`triton`, `triton_native`), that the set is untested, unless an entry
    point has. Nothing is known of other people's families."""
    needs = NEEDS.get(who.partition("_")[0])
    if SAID not in os.environ and needs and (line := untested(needs)):
        warnings.warn(line, stacklevel=3)
