"""Make the virtual environment that the Makefile runs in; print the path of its Python.

Kinds. `host`: this Python has torch and triton already, so the environment sees them (--system-site-packages)
and gets only what is missing; pip may not install another torch or triton. `pinned`: constraints-cpu.txt, exactly;
taken where this Python has none of its own, and always with --pinned. A lane: a set of common/tested.toml by its name,
in an environment of its own in front of the pinned one. A stamp makes the second call cheap; what a stamp cannot see,
an environment whose packages somebody changed, the pins show.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints-cpu.txt"
STAMP = "diptych-stamp.json"
TESTED = tomllib.loads((ROOT / "common" / "tested.toml").read_text())
# Distributions that carry torch and triton.
NATIVE = (*TESTED["distributions"]["torch"], *TESTED["distributions"]["triton"])
LANES = {one["name"]: one for one in TESTED["set"] if one["on"] != "gpu" and one["name"] != "pinned"}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def installed(names: tuple[str, ...], path: list[str] | None = None) -> dict[str, str]:
    """name -> version of those of `names` that are installed, here or under `path`."""
    found = {}
    for name in names:
        for dist in metadata.distributions(name=name, **({"path": path} if path else {})):
            found[name] = dist.version
            break
    return found


def pins(text: str) -> dict[str, str]:
    """`name==version` lines -> name -> version."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def wanted_pins(kind: str) -> dict[str, str]:
    """name -> version of all that an environment itself holds exactly; nothing of a host's."""
    if kind == "host":
        return {}
    pinned = pins(CONSTRAINTS.read_text())
    if kind not in LANES:
        return pinned
    return {name: LANES[kind][name] for name in TESTED["distributions"] if LANES[kind][name] != pinned[name]}


def differing(wanted: dict[str, str], path: list[str]) -> list[str]:
    """Pins that the packages under `path` do not hold; a local label such as +cpu is allowed."""
    found = installed(tuple(wanted), path)
    return [
        f"{name} {found.get(name, 'missing')}"
        for name, version in wanted.items()
        if found.get(name, "").split("+")[0] != version
    ]


def host_packages() -> list[str]:
    """Folders that hold what this Python itself sees beyond its base: those of the virtual environment it may be."""
    return [entry for entry in sys.path if sys.prefix != sys.base_prefix and Path(entry).name == "site-packages"]


def host_imports() -> bool:
    if find_spec("torch") is None or find_spec("triton") is None:
        return False
    probe = subprocess.run([sys.executable, "-c", "import torch, triton"], capture_output=True, text=True)
    if probe.returncode:
        say(f"{sys.executable} has torch and triton but cannot import them: {probe.stderr.strip().splitlines()[-1:]}")
    return probe.returncode == 0


def active() -> str | None:
    """The kind of the project's own environment where this Python is that one's, as after `. .venv/bin/activate`."""
    target = ROOT / ".venv"
    stamp = target / STAMP
    inside = Path(sys.prefix).resolve() == target.resolve() and stamp.exists()
    return json.loads(stamp.read_text())["kind"] if inside else None


def key(kind: str) -> dict[str, object]:
    """What the environment depends on; any difference makes it anew."""
    files = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints-cpu.txt"))
    files += json.dumps(wanted_pins(kind)).encode()
    native = installed(NATIVE) if kind == "host" else {}
    return {"kind": kind, "python": sys.version, "files": hashlib.sha256(files).hexdigest(), "native": native}


def site_packages(target: Path) -> str:
    return str(target / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages")


def is_current(target: Path, wanted: dict[str, object]) -> bool:
    stamp = target / STAMP
    if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
        return False
    changed = differing(wanted_pins(wanted["kind"]), [site_packages(target)])
    if changed:
        say(f"{target.name} does not hold the pins ({', '.join(changed)}); making it anew")
    return not changed


def can_build_here() -> bool:
    """Whether this Python's setuptools builds the project: then no network is needed for it."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"][0]
    return int(installed(("setuptools",)).get("setuptools", "0").split(".")[0]) >= int(required.split(">=")[1])


def make(target: Path, kind: str) -> None:
    say(f"making {target.name} ({kind}); the first time takes a minute or two")
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, system_site_packages=kind == "host", symlinks=True, with_pip=True)
    python, own = str(target / "bin" / "python"), site_packages(target)
    constraints, extras, options = CONSTRAINTS, "cpu,test,fleet", []
    if kind == "host":
        (Path(own) / "host.pth").write_text("\n".join(host_packages()) + "\n")
        constraints, extras = target / "constraints-host.txt", "compare,helion,test"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in installed(NATIVE).items()))
        if can_build_here():
            if installed(("setuptools",), [own]):  # Python 3.11's venv brings one too old, in front of the host's
                subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True)
            options.append("--no-build-isolation")
    project = ["--constraint", str(constraints), "--editable", f"{ROOT}[{extras}]"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *options, *project], check=True, stdout=sys.stderr)
    subprocess.run([python, "-c", "import torch, triton, helion"], check=True, stdout=sys.stderr)
    if kind == "host" and (second := installed(NATIVE, [own])):
        raise SystemExit(f"{target}: pip installed {second} beside those of {sys.executable}; remove one of the two")


def make_lane(target: Path, lane: str, pinned: Path) -> None:
    """What the set has otherwise than the pinned environment, in front of that one's packages."""
    say(f"making {target.name}; the first time takes a minute")
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, symlinks=True, with_pip=False)  # the pinned one's pip serves it; one of its own takes 7 s
    python, exact = str(target / "bin" / "python"), wanted_pins(lane)
    (Path(site_packages(target)) / "pinned.pth").write_text(f"{site_packages(pinned)}\n{ROOT}\n")
    pip = [str(pinned / "bin" / "python"), "-m", "pip", "--python", python]
    # A release of torch brings what it needs, one of triton among that: another one is what a lane is for.
    for options, names in (([], {"torch"}), (["--no-deps"], {"triton", "helion"})):
        if wanted := [f"{name}=={version}" for name, version in exact.items() if name in names]:
            subprocess.run([*pip, "install", "--quiet", *options, *wanted], check=True, stdout=sys.stderr)
    subprocess.run([python, "-c", "import torch, triton, helion"], check=True, stdout=sys.stderr)


def current(target: Path, kind: str, making: Callable[[], None]) -> Path:
    """The environment, made where it is missing or out of date."""
    wanted = key(kind)
    if not is_current(target, wanted):
        making()
        (target / STAMP).write_text(json.dumps(wanted))
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pinned", action="store_true", help="constraints-cpu.txt, whatever this Python has")
    parser.add_argument("--lane", choices=LANES, help="a set of common/tested.toml")
    asked = parser.parse_args()
    pinned, own = asked.pinned or asked.lane is not None, active()
    has_own = host_imports() if own is None else own == "host"  # what an environment of ours holds is no host's
    kind = "host" if has_own and not pinned else "pinned"
    target = ROOT / (".venv-pinned" if has_own and pinned else ".venv")
    if own == kind == "host" and not is_current(target, key(kind)):
        raise SystemExit(f"{target} is active and out of date: `deactivate`, and run make again")
    found = current(target, kind, lambda: make(target, kind))
    if asked.lane:
        lane = ROOT / f".venv-{asked.lane}"
        found = current(lane, asked.lane, lambda: make_lane(lane, asked.lane, target))
    print(found / "bin" / "python")


if __name__ == "__main__":
    main()
