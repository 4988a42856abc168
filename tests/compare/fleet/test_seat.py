"""What makes a seat unfit: others on its GPU, no GPU, no room; and what it then says of a share."""

import os
import signal
import subprocess
import sys

import pytest

from compare.fleet import muster, seat
from compare.fleet.cluster import Cluster, NoFleet, ensure_heard, kind_of
from compare.fleet.seat import Seat, Unfit, strangers, tree


@pytest.mark.parametrize(
    ("found", "own", "others"),
    [
        ([], {1}, []),
        ([(7, 40)], {1}, [(7, 40)]),
        ([(2, 500), (3, 500)], {1, 2, 3}, []),
        ([(2, 500), (7, 40)], {1, 2, 3}, [(7, 40)]),
        ([(90, 500), (91, 500)], {1, 2, 3}, []),  # the driver counts processes otherwise: these are our two
        ([(90, 500), (91, 500), (92, 40)], {1, 2, 3}, [(92, 40)]),
    ],
)
def test_who_else_is_on_the_gpu(found, own, others):
    assert strangers(found, own) == others


def test_our_own_processes_are_all_that_we_started():
    child = subprocess.Popen(["sh", "-c", "sleep 30 & echo; wait"], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert os.getpid() in tree(os.getpid()) and child.pid in tree(os.getpid())
        assert len(tree(child.pid)) == 2
    finally:
        for pid in tree(child.pid):
            os.kill(pid, signal.SIGKILL)
        child.wait()


@pytest.mark.parametrize(("kept", "cores", "parts", "told"), [(False, 8, 4, 2), (False, 2, 4, 1), (True, 2, 4, 2)])
def test_a_seat_tells_its_part_of_the_cores_where_nothing_keeps_it_there(monkeypatch, kept, cores, parts, told):
    """Else four seats of a node of eight cores start 32 compilers. Kept apart, it has no more than its part."""
    monkeypatch.setattr(seat, "keep_to", lambda part, of: kept)
    monkeypatch.setattr(seat, "cores", lambda: cores)
    one = Seat("box:0", True, "h200", (0, parts))
    monkeypatch.setattr(one, "_probed", dict)
    monkeypatch.setattr(one, "_wait_alone", lambda: None)
    assert one.facts()["cores"] == told


class Rows:
    def open(self, name): ...

    def do(self, share):
        yield from share

    def close(self): ...


def busy(monkeypatch, *answers):
    told = list(answers)
    monkeypatch.setattr(seat, "_users", lambda address: told.pop(0) if len(told) > 1 else told[0])
    monkeypatch.setattr(seat, "tree", lambda pid: {pid})  # a process of the tests may have children of its own
    one = Seat("box:0", True)
    one._address = "GPU-1"
    one.open(Rows())
    return one


def test_a_share_on_a_busy_gpu_is_not_begun(monkeypatch):
    with pytest.raises(Unfit, match="process 99 with 40 MiB"):
        next(busy(monkeypatch, [(99, 40)]).do([1, 2]))


def test_a_share_beside_which_another_process_came_does_not_count(monkeypatch):
    found = []
    with pytest.raises(Unfit, match="process 99"):
        found.extend(busy(monkeypatch, [], [(99, 40)]).do([1]))
    assert list(busy(monkeypatch, [], []).do([1, 2])) == [1, 2]


def test_a_work_may_give_any_iterator(monkeypatch):
    """Ray sends a value into an actor's generator, which `yield from` hands on to an iterator that takes none."""
    seated = busy(monkeypatch, [])
    seated._work = type("Plain", (), {"do": lambda self, share: iter(share)})()
    found = seated.do([1, 2, 3])
    assert [next(found), found.send(True), found.send(True)] == [1, 2, 3]


def test_a_full_disk_is_no_fault_of_a_kernel(monkeypatch):
    monkeypatch.setattr(seat.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 20}))
    with pytest.raises(Unfit, match="1 MiB of disk are free"):
        next(busy(monkeypatch, []).do([1]))


def test_a_node_that_lacks_a_package_names_it(monkeypatch):
    monkeypatch.setattr(seat.versions, "here", lambda package: "" if package == "triton" else "9.9")
    assert "triton: found none" in Seat("box:0", False).facts()["unfit"]


def test_a_node_that_says_gpu_and_has_none_is_unfit(monkeypatch):
    monkeypatch.setattr(Seat, "_probed", lambda self: {"gpu": None, "address": "", "software": {}})
    assert Seat("box:0", True).facts()["unfit"] == "torch sees no GPU here"
    assert Seat("box:0", True, "h200").facts()["unfit"] == ""


@pytest.mark.parametrize(
    ("label", "kind"),
    [("H200", "h200"), ("AMD-Instinct-MI300X-OAM", "mi300"), ("AMD-Instinct-MI355X-OAM", "mi355"), ("TPU-V4", None)],
)
def test_accelerator_types_by_our_names(label, kind):
    assert kind_of(label) == kind


class Known:
    def __init__(self, name, **software):
        self.name, self.facts = name, {"software": software}


def test_nodes_with_different_versions_are_named():
    alike = [Known("a:0", torch="2.11.0", triton="3.6.0"), Known("b:0", torch="2.11.0", triton="3.6.0")]
    muster.ensure_alike("h200", alike)
    other = Known("c:0", torch="2.13.0", triton="3.6.0")
    found = r"torch 2\.11\.0 on a:0 and 2\.13\.0 on c:0; allowed one set for h200, or --mixed"
    with pytest.raises(muster.Mixed, match=found):
        muster.ensure_alike("h200", [*alike, other])


def test_without_ray_pip_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NoFleet, match=r"pip install '\.\[fleet\]' in a checkout, or pip install 'ray>=2.49,<3'"):
        Cluster("local")


def test_a_client_address_is_refused():
    with pytest.raises(NoFleet, match="HOST:PORT"):
        Cluster("ray://box:10001")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "no.such.host.invalid:6379"])
def test_an_address_at_which_nobody_listens_is_said_at_once(address):
    with pytest.raises(NoFleet, match=f"found nobody at {address} .*, needed: `ray start --head`"):
        ensure_heard(address)
