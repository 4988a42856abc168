"""A learned choice: legal candidates for any batch, the same for the same batch, and no file that it was not."""

import json
from pathlib import Path

import numpy as np
import pytest

from common.choice import columns, cost, learned, legal
from common.choice.learned import Candidate, Learned, NotLearned, Question
from common.choice.portfolio import ONE_LAUNCH, down
from common.choice.table import width
from common.gpus import resolve
from common.serving.winners import built
from common.spec import AttentionShape
from common.spec.metadata import BatchStats

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted(ROOT.glob("dsl_*/heuristics/learned/*.json"))
SHAPES = [AttentionShape(32, 8, 128, 16), AttentionShape(8, 1, 256, 16), AttentionShape(40, 8, 80, 24)]
COMPUTED = {"num_segments": 1, "registers": 0}  # fields of a config that follow from a batch
BATCHES = {
    "decodes": BatchStats(64, 64, 64, 1, 4096, 64 * 2048),
    "drafts": BatchStats(8, 40, 0, 5, 8192, 8 * 8192),
    "prompt": BatchStats(1, 4096, 0, 4096, 4096, 4096),
    "mixed": BatchStats(17, 16 + 512, 16, 512, 2048, 17 * 2048),
    "one key": BatchStats(1, 1, 1, 1, 1, 1),
    "nothing": BatchStats(0, 0, 0, 0, 0, 0),
}


@pytest.fixture(scope="module", params=FILES, ids=lambda path: f"{path.parts[-4]}-{path.stem}")
def known(request):
    dsl, gpu = request.param.parts[-4].removeprefix("dsl_"), resolve(request.param.stem)
    return dsl, gpu, learned.read(request.param, dsl, gpu)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.num_query_heads}x{shape.head_size}")
def test_candidates_are_whole_configs_that_fit_the_best_first(known, shape, batch, request):
    from compare.competitors import registry

    dsl, gpu, choice = known
    found = choice.first(Question(shape, gpu), BATCHES[batch])
    assert 1 <= len(found) <= 5 and found[0].loss == min(one.loss for one in found)
    sizes = columns.batches([(shape, BATCHES[batch], gpu)])
    for one in found:
        built(registry.load(f"{dsl}/{one.kernel}").DEFAULT, one.config, older=True)
        made = columns.configs([(one.kernel, one.config)], "triton")
        used = "long_" if "prefill" in one.config or "decode" not in one.config else "short_"
        assert legal.fits(sizes, made, used)[0], one
    assert choice.first(Question(shape, gpu), BATCHES[batch]) == found


def test_near_twins_of_a_candidate_stand_behind_what_promises_little_less():
    kinds, lost = ["a", "a", "a", "b", "a", "b"], [0.1, 0.2, 0.3, 0.4, 0.0, 0.5]
    assert learned.apart(kinds, np.array(lost)).tolist() == [4, 0, 1, 3, 2, 5]


def test_candidates_are_told_with_times_in_their_order(known):
    _, gpu, choice = known
    question, stats = Question(SHAPES[0], gpu), BATCHES["decodes"]
    found = choice.first(question, stats)
    told = choice.told(question, stats, found)
    assert [one.candidate for one in told] == found and choice.told(question, stats, []) == []
    order = sorted(range(len(told)), key=lambda i: told[i].us)
    assert order == sorted(range(len(told)), key=lambda i: found[i].loss)
    assert all(one.us > 0 and one.limits in cost.TERMS for one in told)


def test_many_batches_get_what_each_gets_alone(known):
    _, gpu, choice = known
    for shape in SHAPES:
        alone = [choice.first(Question(shape, gpu), stats, 1)[0] for stats in BATCHES.values()]
        many = choice.best(Question(shape, gpu), list(BATCHES.values()))
        assert [(one.kernel, one.config) for one in many] == [(one.kernel, one.config) for one in alone]


def test_few_configs_keep_every_batch_near_its_best(known):
    """Of the batches without a launch apart for decodes, whose config other rows would change."""
    _, gpu, choice = known
    many = [stats for stats in BATCHES.values() if stats.max_query_len <= 8]
    question = Question(SHAPES[0], gpu)
    rows, firsts = choice.few(question, many, 0.08)

    def told(of, stats):
        return {json.dumps(one.config): one.loss for one in of.first(question, stats, 500)}

    for stats in many:
        every, left = told(choice, stats), told(choice.only(rows), stats)
        assert len(left) < len(every)
        assert min(every[config] for config in left) <= min(every.values()) + np.log1p(0.08)
        first = firsts[learned.coarse(stats)]
        for loss in (min(every[config] for config in left), every[json.dumps(first.config)]):
            assert first.loss == pytest.approx(loss, abs=1.5 * 10**-learned.DIGITS)  # sums in another order, rounded


def test_a_prompt_beside_decodes_gets_the_launch_for_them_that_is_left(known):
    _, gpu, choice = known
    many = list(BATCHES.values())
    rows, firsts = choice.few(Question(SHAPES[0], gpu, ("adjustable_tile",)), many, 0.08)
    left = {json.dumps(choice.portfolio.rows[row][1] | COMPUTED, sort_keys=True) for row in rows}
    beside = firsts[learned.coarse(BATCHES["mixed"])].config["decode"]
    assert json.dumps(beside | COMPUTED, sort_keys=True) in left


def test_prompts_alone_have_a_decodes_rows_beside_them(known):
    _, gpu, choice = known
    found = choice.first(Question(SHAPES[0], gpu, ("adjustable_tile",)), BATCHES["prompt"], 3)
    assert found and {one.config["decode"]["block_m"] for one in found} == {16}


def test_what_is_missed_least_leaves_while_no_batch_loses_more_than_the_slack():
    times = np.array([[1.0, 1.05, 9.0], [1.2, 1.0, 9.0]])  # the last column is to stay
    assert learned.missed_least(np.log(times), 0.08, 2).tolist() == [1]
    assert learned.missed_least(np.log(times), 0.03, 2).tolist() == [0, 1]
    assert learned.missed_least(np.log(times), 0.30, 0).tolist() == []


def test_short_queries_alone_have_one_launch(known):
    _, gpu, choice = known
    found = choice.first(Question(SHAPES[0], gpu), BATCHES["decodes"], 50)
    assert {one.kernel for one in found} <= set(ONE_LAUNCH)


def test_one_kernels_candidates_alone(known):
    _, gpu, choice = known
    found = choice.first(Question(SHAPES[0], gpu, ("adjustable_tile",)), BATCHES["mixed"], 3)
    assert found and {one.kernel for one in found} == {"adjustable_tile"}
    assert {"prefill", "decode"} == set(found[0].config)


def test_segments_are_of_the_numbers_that_a_choice_may_have(known):
    from common.serving.grid import KEYS

    _, gpu, choice = known
    for batch in BATCHES.values():
        for one in choice.first(Question(SHAPES[0], gpu, ("parallel_softmax",)), batch, 200):
            assert one.config["num_segments"] in KEYS and one.config["num_segments"] <= legal.MOST_SEGMENTS


def test_down_is_the_largest_allowed_number_that_is_no_larger():
    from bisect import bisect_right

    from common.serving.grid import KEYS

    numbers = np.arange(1, 400) + 0.3
    assert list(down(numbers)) == [KEYS[bisect_right(KEYS, n) - 1] for n in numbers]


NET = {"mean": [0.0] * width(), "scale": [1.0] * width()}
NET["members"] = [[[[[0.0]] * width(), [0.0]], [[[0.0]], [0.0]], [[[0.0]], [0.5]]]]
PLAIN = {
    "label": learned.LABEL, "dsl": "triton", "gpu": "h200", "provenance": {}, "sources": {}, "columns": width(),
    "held_out": {}, "shares": [1.0], "portfolio": {"parallel_softmax": [{"block_m": 16, "num_segments": 1}]},
    "winners": [], "constants": [1.0] * len(cost.TERMS), "net": NET,
}  # fmt: skip


def test_the_smallest_file_answers():
    choice = Learned(PLAIN, "triton", resolve("h200"))
    (found,) = choice.first(Question(SHAPES[0], resolve("h200")), BATCHES["one key"])
    assert found == Candidate("parallel_softmax", {"block_m": 16, "num_segments": 1}, 0.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": "another"}, "without label"),
        ({"dsl": "helion"}, "found 'helion' on 'h200', allowed triton on h200"),
        ({"gpu": 7}, "on 7"),
        ({"columns": 2}, "columns: found 2"),
        ({"net": []}, "net: found none"),
        ({"constants": [1.0]}, "constants: found"),
        ({"constants": [-1.0] * len(cost.TERMS)}, "constants: found"),
        ({"constants": "many"}, "constants: found"),
        ({"portfolio": {"q_block": [{"block_m": 16}]}}, "portfolio"),
        ({"portfolio": {"parallel_softmax": []}}, "allowed a list of configs"),
        ({"shares": [1.0, 0.0]}, "allowed numbers above 0"),
        ({"portfolio": {"parallel_softmax": [{"block_m": [16]}]}}, "allowed fields of one Config"),
        ({"portfolio": {"parallel_softmax": [{"block_m": 16}, {"tile_size": 16}]}}, "allowed fields of one Config"),
        ({"portfolio": {"parallel_softmax": [{"gather": "somehow"}]}}, "allowed fields of one Config"),
        ({"portfolio": {"parallel_softmax": [{"block_m": 16}], "mine": []}}, "allowed configs of q_block"),
    ],
)
def test_a_file_that_is_none_is_refused_by_the_member(change, words):
    with pytest.raises(NotLearned, match=words):
        Learned(PLAIN | change, "triton", resolve("h200"))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"label": 3}', "\ud800".encode("utf-8", "surrogatepass")])
def test_a_damaged_file_is_refused_by_its_name(tmp_path, text):
    path = tmp_path / "h200.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(NotLearned):
        learned.read(path, "triton", resolve("h200"))


def test_no_file_is_no_choice(tmp_path):
    assert learned.read(tmp_path / "h200.json", "triton", resolve("h200")) is None


def test_the_committed_files_say_what_they_lose():
    assert FILES
    for path in FILES:
        held = json.loads(path.read_text())["held_out"]
        assert {"seed", "shape"} == set(held) and all("best of the first 5" in one for one in held.values())
