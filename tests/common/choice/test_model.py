"""A net as data: it answers as written down, and a file that is none is refused by name."""

import numpy as np
import pytest

from common.choice.model import DOUBT, LIMIT, Net, doubted


def made(columns=3, hidden=5, members=2, seed=0):
    draw = np.random.default_rng(seed)
    sizes = ((columns, hidden), (hidden, hidden), (hidden, 1))
    layers = [
        tuple(
            (draw.normal(0, 1, size).astype(np.float32), draw.normal(0, 1, size[1:]).astype(np.float32))
            for size in sizes
        )
        for _ in range(members)
    ]
    return Net(np.zeros(columns, np.float32), np.ones(columns, np.float32), tuple(layers))


def test_what_members_agree_on_comes_before_what_they_do_not_and_their_levels_say_nothing():
    level = np.array([[0.0], [3.0]])  # of two members
    agreed, doubtful = np.array([0.1, 0.1]), np.array([-0.1, 0.3])
    lost = doubted(np.stack([agreed, doubtful], axis=1) + level, level, 0.0)
    assert lost[0] < lost[1] and np.allclose(lost, [0.1 + 1.5, 0.1 + 1.5 + DOUBT * 0.2])


def test_a_formula_says_little_among_the_best_and_decides_where_it_says_many_times_as_long():
    same = np.zeros((2, 1))
    near, far = (doubted(np.array([[0.0, -0.7]] * 2), same, np.array([0.0, behind])) for behind in (0.25, 3.0))
    assert near[1] < near[0] - 0.65 and far[1] > far[0]


def test_a_member_is_what_torch_says_of_its_layers():
    import torch

    net, table = made(members=1), np.random.default_rng(2).normal(0, 1, (20, 3)).astype(np.float32)
    x = torch.tensor(table)
    for number, (weights, biases) in enumerate(net.members[0]):
        x = x @ torch.tensor(weights) + torch.tensor(biases)
        x = torch.nn.functional.silu(x) if number < 2 else x
    assert np.allclose(net.answers(table)[0], x[:, 0].numpy(), atol=1e-5)


def test_what_lies_outside_of_the_logs_is_as_their_edge():
    net = made()
    far, edge = np.full((1, 3), 1e30, np.float32), np.full((1, 3), LIMIT, np.float32)
    assert np.array_equal(net.answers(far), net.answers(edge))


def test_what_was_written_down_ranks_as_before():
    net, table = made(7, 16, 3), np.random.default_rng(1).normal(0, 1, (50, 7)).astype(np.float32)
    again = Net.of(net.plain(), 7).answers(table)
    assert np.allclose(again.mean(axis=0), net.answers(table).mean(axis=0), atol=1e-3)


def changed(**changes):
    return made().plain() | changes


MEMBER = made().plain()["members"][0]


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ([], "found none"),
        ({"mean": []}, "allowed mean, scale and members"),
        (changed(more=1), "found none"),
        (changed(mean=[0.0]), r"mean: found \[1\], allowed finite ones of \[3\]"),
        (changed(mean=[0.0, float("nan"), 0.0]), "finite"),
        (changed(mean=["a", "b", "c"]), "no numbers"),
        (changed(scale=[1.0, 0.0, 1.0]), "scale of 0"),
        (changed(members=[]), "no member"),
        (changed(members={}), "no member"),
        (changed(members=[[]]), "without pairs"),
        (changed(members=[[*MEMBER[:2], 7]]), "without pairs"),
        (changed(members=[[[MEMBER[0][0], 7], *MEMBER[1:]]]), "a layer without outputs"),
        (changed(members=[MEMBER, [MEMBER[0], MEMBER[2]]]), "different sizes"),
        (changed(members=[[MEMBER[0], MEMBER[0], MEMBER[2]]]), "weights: found"),
        (changed(members=[[[[[1e60] * 5] * 3, MEMBER[0][1]], *MEMBER[1:]]]), "finite"),
    ],
)
def test_a_file_that_is_no_net_is_refused(plain, words):
    with pytest.raises(ValueError, match=words):
        Net.of(plain, 3)
