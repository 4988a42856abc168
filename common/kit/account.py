"""The user that a kernel runs as: an unused one, where the kit is root on Linux.

It owns one folder, for its home and caches, and cannot write the judge's files, end its processes or read its memory.
Files that it must read and that are closed to others (a kernel below /root) it reads by one capability, where the
system lets root pass it on.
"""

import contextlib
import json
import os
import secrets
import shutil
import site
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from glob import glob
from pathlib import Path

from common import process

HERE = Path(__file__).resolve().parent
UIDS = range(60706, 61184)  # not assigned by systems, and present in containers without root
DEVICES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri/renderD*")
LOOK_S = 60.0
NEEDED = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7}  # capabilities that root needs: name -> bit
_given: list[int] = []


@dataclass(frozen=True)
class Account:
    """Another user. groups: of the GPUs' device files. reading: may read what is closed to others."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    reading: bool = False

    def command(self, program: Sequence[str] = (), look: Sequence[str] = ()) -> list[str]:
        plan = json.dumps(asdict(self) | {"look": list(look)})
        return [sys.executable, "-I", "-S", str(HERE / "enter.py"), plan, *program]


class Home:
    """A folder for one account, inside one of the judge's; both are removed with this object."""

    def __init__(self, account: Account) -> None:
        above = Path(tempfile.mkdtemp("", "diptych-"))
        weakref.finalize(self, shutil.rmtree, above, ignore_errors=True)
        above.chmod(0o711)
        self._folder = above / "home"
        for folder in (self._folder, self._folder / "tmp", self._folder / ".cache"):
            folder.mkdir(0o700)
            os.chown(folder, account.uid, account.gid)

    def environment(self) -> dict[str, str]:
        """Environment variables for this folder, and for packages that the calling user installed for himself."""
        home, caches = str(self._folder), self._folder / ".cache"
        folders = {"HOME": home, "TMPDIR": str(self._folder / "tmp"), "XDG_CACHE_HOME": str(caches)}
        named = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "cuda"}
        folders |= {name: str(caches / folder) for name, folder in named.items()}
        return folders | {"USER": "diptych", "LOGNAME": "diptych", "PYTHONUSERBASE": site.getuserbase()}


def another() -> tuple[Account | None, str]:
    """An account that can run kernels from this folder; or None and the reason."""
    if not sys.platform.startswith("linux"):
        return None, f"on {sys.platform} a kernel has the rights of who calls"
    if os.geteuid() != 0:
        return None, "without root a kernel has the rights of who calls"
    held = int(Path("/proc/self/status").read_text().partition("\nCapEff:")[2].split()[0], 16)
    if lacks := [f"CAP_{name}" for name, bit in NEEDED.items() if not held >> bit & 1]:
        return None, f"root lacks {', '.join(lacks)} here"
    found, why = _another(os.getcwd(), os.environ.get("PYTHONPATH", ""))
    if found is not None:  # each child has its own
        uid = _unused()
        found = replace(found, uid=uid, gid=uid)
    return found, why


@cache
def _another(folder: str, python_path: str) -> tuple[Account | None, str]:
    devices = [path for pattern in DEVICES for path in glob(pattern) if _opens(path)]
    groups = {os.stat(path).st_gid for path in devices if os.stat(path).st_mode & 0o006 != 0o006} - {0}
    uid = _unused()
    account = Account(uid, uid, tuple(sorted(groups)))
    look = [*devices, *_read_by_kernels(folder, python_path)]
    why = _closed(account, look)
    if why:
        able = replace(account, reading=True)
        if not _closed(able, look):
            return able, ""
        return None, why
    return account, ""


def _opens(path: str) -> bool:
    """Whether this process can open the device file."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR))
        return True
    return False


def _unused() -> int:
    """A uid of UIDS without processes, not yet given to another child here."""
    taken = set(map(str, _given)) if len(_given) < len(UIDS) else set()
    for path in glob("/proc/[0-9]*/status"):
        with contextlib.suppress(OSError):
            taken |= {
                word for line in Path(path).read_text().splitlines() if line[:4] == "Uid:" for word in line.split()
            }
    first = secrets.randbelow(len(UIDS))
    _given.append(next(uid for uid in (*UIDS[first:], *UIDS[:first]) if str(uid) not in taken))
    return _given[-1]


def _read_by_kernels(folder: str, python_path: str) -> list[str]:
    """What kernels read: Python, its packages, and the modules of the folders that a kernel is imported from."""
    own = [folder, *(path for path in python_path.split(os.pathsep) if path)]
    modules = [
        path for one in own for pattern in ("*.py", "*/__init__.py") for path in glob(os.path.join(one, pattern))
    ]
    python = [os.path.realpath(sys.executable), str(HERE / "isolated.py"), tempfile.gettempdir()]
    return [*python, *filter(None, sys.path), *own, *modules]


def _closed(account: Account, look: Sequence[str]) -> str:
    """Why the account cannot run a kernel; empty where it can."""
    try:
        code, out, err = process.once(account.command(look=look), os.environ, b"", LOOK_S)
    except (process.Lost, OSError) as error:
        return f"another user cannot start Python: {error}"
    if code:
        last = err.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        return f"another user cannot be become: {last:.80}"
    found = out.decode(errors="replace").split("\n")[0]
    return f"closed to another user: {found:.80}" if found else ""
