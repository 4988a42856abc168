"""The ranking of an engine's batches is found once; a second process reads it, and believes no other file."""

import pytest
import torch

import common.serving.reach
from common import gpus
from common.choice.learned import Learned
from common.serving import lean, winners
from common.spec import AttentionShape
from dsl_triton.native.auto import plan_paged_attention

SHAPE, H200 = AttentionShape(32, 8, 128, 16, torch.bfloat16), gpus.resolve("h200")


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Choices and parts of an engine's plan on an H200, as a new process finds them; it keeps files in tmp_path."""
    monkeypatch.setenv(winners.FOLDER, str(tmp_path))
    monkeypatch.setattr(common.serving.reach, "gpu_of", lambda device: H200)

    def start(slack=0.08):
        monkeypatch.setattr(lean, "_families", {})
        return plan_paged_attention(SHAPE, 512, 8, 1024, "cpu", one_config=False, slack=slack)

    return start


def test_a_second_process_ranks_nothing(started, monkeypatch):
    first = started()

    def ranks(self, question, many):
        assert not many
        return []

    monkeypatch.setattr(Learned, "best", ranks)
    monkeypatch.setattr(Learned, "few", None)
    assert started().choices == first.choices


def test_another_slack_has_a_file_of_its_own(started, tmp_path):
    started(), started(0.5)
    assert len(list(tmp_path.rglob("*.json"))) == 2


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("[]"), lambda path: path.chmod(0o622)])
def test_a_file_that_is_not_as_it_was_written_is_ignored_with_a_word(started, tmp_path, spoil):
    first = started()
    spoil(next(tmp_path.rglob("*.json")))
    with pytest.warns(UserWarning, match="ignored"):
        assert started().choices == first.choices


def test_without_a_folder_nothing_is_kept(started, tmp_path, monkeypatch):
    monkeypatch.setenv(winners.FOLDER, "0")
    assert started().choices and not list(tmp_path.iterdir())
