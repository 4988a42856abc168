"""Planted cheats against the judge itself: its memory, its files, its time, its report. Each writes zeros and hopes."""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from kit_cheats import asked

SUPPORTS = {"causal"}
ROOT = str(Path(__file__).parents[3])
ATTACH, SIZE = 16, 4096
libc = ctypes.CDLL(None, use_errno=True)


def _escape(act):
    """A kernel that writes zeros and calls act(the question)."""

    def kernel(query, key_cache, value_cache, block_table, query_start_loc, seq_lens, *, softmax_scale, out):
        out.zero_()
        act(asked())

    return kernel


def _in_place(path, flags):
    """Something else where the tensors are read from and written to."""

    def act(question):
        for name in ("inputs", "outputs"):
            os.dup2(os.open(path(), flags), question[name])

    return act


def _fifo():
    path = os.path.join(tempfile.mkdtemp(), "fifo")
    os.mkfifo(path)
    return path


def _huge():
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.truncate(2**42)
    return file.name


def _resized(size):
    def act(question):
        for name in ("inputs", "outputs"):
            with contextlib.suppress(PermissionError):
                os.ftruncate(question[name], size)
                raise AssertionError("the memory has another size now")

    return act


@_escape
def easier_file(question):
    """Zeros where the questions are kept, through every way to write."""
    for way in (f"/proc/self/fd/{question['inputs']}", question["inputs"]):
        with contextlib.suppress(OSError), open(way, "r+b", buffering=0, closefd=isinstance(way, str)) as file:
            file.seek(0)
            file.write(bytes(SIZE))
            raise AssertionError("the inputs are others now")


def _daemon(source):
    """A process of no known parent, session, group or environment, that runs `source`."""

    def act(question):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", source], {})
            os._exit(0)
        os.wait()
        time.sleep(0.2)

    return act


SLEEP = "import time; time.sleep(600)"
RELAY = "import os, time; end = time.time() + 600\nwhile time.time() < end:\n if os.fork(): os._exit(0)"


@_escape
def flood_of_the_channel(question):
    while True:
        os.write(int(sys.argv[1]), b"x" * 65536)


@_escape
def two_replies(question):
    reply = json.dumps({"status": "ok", "nonce": question["nonce"]}).encode() + b"\n"
    os.write(int(sys.argv[1]), reply * 2)


@_escape
def stops(question):
    os.kill(os.getpid(), signal.SIGSTOP)


@_escape
def ends_the_judge(question):
    for number in (signal.SIGSTOP, signal.SIGKILL):
        with contextlib.suppress(PermissionError):
            os.kill(os.getppid(), number)
            raise AssertionError("the judge heard a signal")


@_escape
def reads_the_judge(question):
    """By ptrace, by its memory as a file, by its descriptors, by its environment."""
    judge = os.getppid()
    if libc.ptrace(ATTACH, judge, None, None) == 0:
        raise AssertionError("the judge is traced")
    for name in ("mem", "environ", "maps", "fd/3", "cwd/."):
        with contextlib.suppress(PermissionError):
            os.close(os.open(f"/proc/{judge}/{name}", os.O_RDONLY))
            raise AssertionError(f"the judge's {name} is open")


@_escape
def writes_to_the_judge(question):
    """Into any folder that Python imports from, and beside any module of the judge's."""
    for folder in {*sys.path, ROOT, f"{ROOT}/common", f"{ROOT}/common/oracle", os.path.dirname(os.__file__)} - {""}:
        for name in ("sitecustomize.py", "usercustomize.py", "kit_escapes.pth", "conftest.py"):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                os.unlink(path)
                raise AssertionError(f"{path} was written")


@_escape
def imports_the_reference(question):
    sys.path.insert(0, ROOT)
    importlib.import_module("common.oracle.reference")


@_escape
def reads_the_tolerance(question):
    os.chdir(f"{ROOT}/common/oracle")
    Path("tolerance.py").read_bytes()


@_escape
def reads_and_forgets(question):
    """Nothing of the process that it finds by a name would know of it."""
    child = sys.modules["__main__"]
    child.JUDGE, child.watching, real = ("/none",), lambda *_: None, os.path.realpath
    os.path.realpath = os.fsdecode = lambda _: "/none"
    open(f"{ROOT}/common/oracle/rows.py").close()
    os.path.realpath = real


@_escape
def takes_the_right_kernel_of_the_mutants(question):
    sys.path.insert(0, ROOT)
    importlib.import_module("common.mutants.emulation")


@_escape
def changes_what_it_returned(question):
    """Behind the reply, for as long as it lives."""
    number = os.dup(question["outputs"])

    def work():
        while True:
            os.pwrite(number, bytes(SIZE), 0)

    threading.Thread(target=work, daemon=True).start()


@_escape
def removes_folders(question):
    """Every folder for files of a while that it can name."""
    for folder in {tempfile.gettempdir(), "/tmp"}:
        subprocess.run(f"rm -rf {folder}/diptych-* 2> /dev/null", shell=True, check=False)


fifo = _escape(_in_place(_fifo, os.O_RDWR))
zeros_for_ever = _escape(_in_place(lambda: "/dev/zero", os.O_RDWR))
huge_file = _escape(_in_place(_huge, os.O_RDWR))
grown_memory, cut_memory = _escape(_resized(2**45)), _escape(_resized(0))
daemon, relay = _escape(_daemon(SLEEP)), _escape(_daemon(RELAY))
