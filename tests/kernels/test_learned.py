"""What logs teach as a source of configs: legal, the same for a batch, the rules' where nothing was learned."""

import dataclasses
import json
import warnings

import pytest

from common.gpus import TABLE, resolve
from common.serving.choice import LEARNED, Family
from common.spec import AttentionShape
from compare.competitors import registry
from compare.workloads import Workload, parse_lens, suites

ROWS = suites.unseen(100, 24)
H200, MI300 = resolve("h200"), resolve("mi300")
SHAPES = [AttentionShape(*heads) for heads in ((32, 8, 128), (16, 4, 128), (64, 8, 64))]


def chosen(dsl, row, gpu, heuristics="learned"):
    module = registry.load(f"{dsl.name}/auto")
    return module.choose(row.shape, row.stats, gpu, row.ask.members(row.shape), heuristics, row.ask.sees)


def test_every_row_gets_a_whole_config_of_a_kernel_that_serves_it(dsl):
    learned = 0
    for row in ROWS:
        choice = chosen(dsl, row, H200)
        assert row.ask.members(row.shape) <= dsl.module(choice.kernel).SUPPORTS
        assert isinstance(choice.config, type(dsl.module(choice.kernel).DEFAULT))
        assert chosen(dsl, row, H200) == choice
        learned += choice.path.startswith(LEARNED)
    assert learned > len(ROWS) // 2


def test_a_rung_takes_the_first_of_its_own(dsl):
    kernel_id, row = f"{dsl.name}/parallel_softmax@learned", ROWS[0]
    kernel = registry.load(kernel_id)
    config, origin = registry.default_config(kernel_id, kernel, row.shape, row.stats, H200)
    assert isinstance(config, kernel.Config) and origin == "heuristics"


def test_a_gpu_without_logs_takes_what_fits_it_of_the_one_most_like_it(dsl):
    for row in ROWS[:6]:
        with warnings.catch_warnings(record=True):  # said once in a process
            warnings.simplefilter("always")
            choice = chosen(dsl, row, MI300)
        parts = [choice.config, *(getattr(choice.config, part, None) for part in ("prefill", "decode"))]
        assert choice.path.startswith(f"{LEARNED}/h") and not any(getattr(part, "overlap", False) for part in parts)


@pytest.mark.parametrize("gpu", [gpu for gpu in TABLE.values() if gpu.units], ids=lambda gpu: gpu.name)
def test_a_long_prompt_has_32_rows_a_program_or_more_on_any_gpu(dsl, gpu):
    """Products of 16 rows leave most of a matrix unit idle. What the logs' GPUs have in common must not lead there."""
    for text, shape in ((text, shape) for text in ("q4k", "8q1k", "q512s8k") for shape in SHAPES):
        row = Workload(text, parse_lens(text), shape)
        with warnings.catch_warnings(record=True):  # said once in a process
            warnings.simplefilter("always")
            config = chosen(dsl, row, gpu).config
        assert getattr(config, "prefill", config).block_m >= 32


def test_launches_overlap_where_the_gpu_can_whatever_the_logs_were_timed_with(dsl):
    for row in ROWS:
        choice = chosen(dsl, row, H200)
        parts = [choice.config, *(getattr(choice.config, part, None) for part in ("prefill", "decode"))]
        assert all(getattr(part, "overlap", True) for part in parts)


def test_a_damaged_file_is_named_once_and_the_rules_answer(dsl, tmp_path, monkeypatch):
    family = registry.load(f"{dsl.name}/auto").FAMILY
    folder = type("Folder", (), {"__path__": [str(tmp_path / "heuristics")]})
    (tmp_path / LEARNED).mkdir(parents=True)
    (tmp_path / LEARNED / "h200.json").write_text(json.dumps({"label": "another"}))

    def load(name):
        return folder if name == "heuristics" else family.load(name)

    fresh = Family(family.name, family.kernels, load)
    row = ROWS[0]
    with pytest.warns(UserWarning, match="found a file without label"):
        found = fresh.choose(row.shape, row.stats, H200, heuristics="learned")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without label.*")
        other = dataclasses.replace(row.stats, num_tokens=row.stats.num_tokens + 1)
        fresh.choose(row.shape, other, H200, heuristics="learned")
    assert found.config == family.choose(row.shape, row.stats, H200, heuristics="default").config
