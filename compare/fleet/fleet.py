"""What a Ray cluster has for a comparison: its nodes, their GPUs and versions, and who is busy.

    python -m compare fleet                    the cluster that this machine is in
    python -m compare fleet HOST:6379
    python -m compare fleet local              this machine alone, as `--fleet local` would see it

A seat is asked on every GPU, and on one core of a node without any. Exit codes: 0; 2 where there is no cluster; 3
where no node has a GPU that may time.
"""

import argparse
from collections.abc import Sequence

from compare.exits import NO_GPU, OK, refusing
from compare.fleet.cluster import AUTO, Cluster, Lost, NoFleet, RemoteSeat
from compare.identity import code

HELP = "list the nodes of a Ray cluster: GPUs, versions, who is busy"
PACKAGES = ("torch", "triton", "helion")
COLUMNS = ("seat", "GPU", *PACKAGES, "may time")


def options(new: argparse.ArgumentParser) -> None:
    new.add_argument("address", nargs="?", default=AUTO, metavar="ADDRESS", help="HOST:PORT of its head, or local")


@refusing(NoFleet)
def main(asked: argparse.Namespace) -> int:
    with Cluster(asked.address) as cluster:
        nodes = cluster.nodes()
        seats = cluster.seats([(node, node.gpus) for node in nodes if node.gpus], True)
        seats += cluster.seats([(node, 1) for node in nodes if not node.gpus and node.cores], False)
        for seat in seats:
            seat.start()
        lines = [line_of(seat) for seat in seats]
        print("\n".join(table([COLUMNS, *lines])))
        cores = sum(node.cores for node in nodes)
        print(f"{len(nodes)} nodes, {sum(node.gpus for node in nodes)} GPUs, {cores} cores; code {code(seat.PACKAGES)}")
    return OK if any(line[-1] == "yes" for line in lines) else NO_GPU


def line_of(seat: RemoteSeat) -> tuple[str, ...]:
    """One line of the table: the values of COLUMNS for a seat."""
    why = "yes" if seat.timed else "no GPU"
    try:
        seat.begin()
    except Lost as lost:
        why = f"no: {lost}"
    found = seat.facts.get("software", {})
    gpu = (seat.facts.get("gpu") or {}).get("name") or seat.node.label or f"{seat.node.cores} cores"
    return (seat.name, gpu, *(found.get(name, "unknown") for name in PACKAGES), why)


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{word:{width}}" for word, width in zip(line, widths, strict=True)).rstrip() for line in lines]
