"""A child that hangs, floods, dies or closes its end is lost in so many words, and leaves no process."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from common import process
from common.process import DESCRIPTOR, Child, Lost, Over

ECHO = "import sys\nfor line in sys.stdin: print('heard', line, end='', flush=True)"
OTHER = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(s.recv(99).upper()); print('log')"


@pytest.fixture
def started():
    children = []

    def start(source, *words, **how):
        children.append(Child([sys.executable, "-c", source, *words], os.environ, **how))
        return children[-1]

    yield start
    for child in children:
        child.end()
        assert child.ended


def lost(child, silence_s=60.0):
    with pytest.raises(Lost) as found:
        child.line(silence_s)
    return found.value


def test_lines_go_and_come(started):
    child = started(ECHO)
    for line in (b"one", b"two"):
        child.send(line)
        assert child.line(60.0) == b"heard " + line


def test_over_a_socket_what_it_prints_is_its_log(started):
    child = started(OTHER, DESCRIPTOR, over=Over.SOCKET)
    child.send(b"one")
    assert child.line(60.0) == b"ONE"
    found = lost(child)
    assert (found.status, found.code, found.log_tail) == ("crash", 0, "log\n")


@pytest.mark.parametrize(
    ("act", "status", "reason", "code"),
    [
        ("sys.exit(3)", "crash", "the process exited with 3", 3),
        ("os.abort()", "crash", "the process died of SIGABRT", -signal.SIGABRT),
        ("os.kill(os.getpid(), 9)", "oom", "the process died of SIGKILL", -signal.SIGKILL),
        ("time.sleep(60)", "timeout", "no sign of life for 2 s", None),
        ("os.write(2, b'x' * (1 << 21)); time.sleep(60)", "flood", "wrote more than 1 MiB to its output", None),
        ("os.write(1, b'x' * 5000); time.sleep(60)", "crash", "the process closed its output", None),
    ],
    ids=["exits", "aborts", "killed", "hangs", "floods", "says too much"],
)
def test_it_is_lost_in_so_many_words(started, monkeypatch, act, status, reason, code):
    child = started(f"import os, sys, time\n{act}", flood=1 << 20, longest=1000)
    if status == "crash" and code is None:
        monkeypatch.setattr(child._process, "wait", lambda timeout: None)
    found = lost(child, 2.0 if status == "timeout" else 10.0)
    monkeypatch.undo()
    assert (found.status, found.reason, found.code) == (status, reason, code)


def test_what_it_said_at_last_is_heard_and_the_tail_is_of_what_came_behind_the_mark(started):
    child = started("import os, sys; os.write(2, b'before'); print('first', flush=True); input(); print('last')\n"
                    "os.write(2, b'behind')")  # fmt: skip
    assert child.line(60.0) == b"first"
    child.mark()
    child.send(b"")
    child._process.wait()
    assert child.line(60.0) == b"last" and lost(child).log_tail == "behind"


def test_a_listener_in_another_thread_loses_a_child_that_is_killed(started):
    child, found = started(ECHO), []
    thread = threading.Thread(target=lambda: found.append(lost(child).status))
    thread.start()
    child.kill()
    thread.join(60)
    assert found == ["oom"]


ORPHAN = "import sys; sys.path.insert(0, sys.argv[1]); from common.process import Child; import os\nprint(Child("
ORPHAN += "[sys.executable, '-c', 'import time; time.sleep(600)'], os.environ).pid)"


def test_it_ends_with_its_parent():
    root = os.path.dirname(os.path.dirname(process.__file__))
    pid = int(subprocess.check_output([sys.executable, "-c", ORPHAN, root]))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_once_is_an_exit_code_and_what_it_wrote():
    source = "import sys; sys.stderr.write('err'); print(input()); sys.exit(5)"
    assert process.once([sys.executable, "-c", source], os.environ, b"in", 60.0) == (5, b"in\n", b"err")
    code, out, err = process.once([sys.executable, "-c", source], os.environ, b"in", 60.0, merged=True)
    assert (code, sorted(out), err) == (5, sorted(b"in\nerr"), b"")


def test_once_runs_where_it_is_told(tmp_path):
    source = "import os; print(os.getcwd())"
    _, out, _ = process.once([sys.executable, "-c", source], os.environ, b"", 60.0, folder=tmp_path)
    assert out.decode().strip() == str(tmp_path.resolve())


def test_once_with_a_limit_keeps_what_was_said():
    source = "import time; print('said', flush=True); time.sleep(60)"
    with pytest.raises(Lost, match="no answer within 4 s") as found:
        process.once([sys.executable, "-c", source], os.environ, b"", 4.0)
    assert found.value.log_tail == "said\n"


PARTS = """
import os, threading
from common.process import cores, keep_to
before, resting = cores(), threading.Event()
thread = threading.Thread(target=resting.wait)
thread.start()
done = keep_to({part}, {of})
print(done, before, cores(), sorted(os.sched_getaffinity(0)), sorted(os.sched_getaffinity(thread.native_id)))
resting.set()
"""


def kept(part, of):
    source = PARTS.format(part=part, of=of)
    told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    done, before, after, rest = told.split(" ", 3)
    assert done == str(of <= int(before))
    own, other = rest.strip().removesuffix("]").split("] [")
    assert own.removeprefix("[") == other  # threads that were there before, too
    return int(before), int(after), set(map(int, other.split(", ")))


@pytest.mark.skipif(process.cores() < 2, reason="one core has no parts")
def test_parts_of_the_cores_are_equal_and_apart():
    (before, first, ours), (_, second, others) = kept(0, 2), kept(1, 2)
    assert first == second == before // 2 and not ours & others


def test_more_parts_than_cores_leave_all_cores_to_each():
    before, after, _ = kept(0, process.cores() + 1)
    assert before == after
