"""Compilations of one file share a child for each GPU: to start one costs as much as most of what it compiles."""

from collections import deque

import pytest

from compare.static.compile import compile_in_child


@pytest.fixture(scope="module")
def compiled():
    """compiled(gpu, *jobs): the outcome of each job, by the child that has the file's other jobs for that GPU."""
    children = {}

    def outcomes(gpu, *jobs):
        if gpu not in children:
            waiting = deque()
            children[gpu] = waiting, compile_in_child(iter(waiting.popleft, None), gpu)
        waiting, found = children[gpu]
        waiting.extend(jobs)
        return [next(found) for _ in jobs]

    yield outcomes
    for _, found in children.values():
        found.close()
