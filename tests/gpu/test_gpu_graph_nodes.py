"""The driver counts the work of a captured graph (compare.studies.costs.launch)."""

import torch

from compare.studies.costs import launch


def test_two_kernels_and_a_copy_are_three_nodes():
    x = torch.zeros(1024, device="cuda")
    y = torch.zeros_like(x)

    def call():
        x.add_(1.0)
        x.mul_(2.0)
        y.copy_(x)

    call()
    replay, found = launch.captured(call)
    assert found == {"kernels": 3} or (torch.version.hip and found == {})  # no HIP was asked yet
    x.zero_()
    replay()
    assert y.eq(2.0).all()


def test_an_empty_graph_has_no_work():
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        pass
    assert launch.count(graph.raw_cuda_graph()) == 0
