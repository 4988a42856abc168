"""Which named cases a kernel without LSE keeps, refuses or gets wrong; what docs/claims.md says of vLLM's."""

import pytest

from common.cases.named import BY_NAME
from compare.__main__ import main as diptych
from compare.competitors import registry
from compare.studies import vllm


class Wrong:
    """flex_attention with one element changed, or an error of its own."""

    def __init__(self, error=None):
        self.real, self.error = registry.load("baseline/flex"), error
        self.CONTRACT, self.DEFAULT, self.workspace = self.real.CONTRACT, self.real.DEFAULT, self.real.workspace

    def launch(self, batch, features, out, config, scratch):
        if self.error:
            raise self.error
        self.real.launch(batch, features, out, config, scratch)
        out[0, 0, 0] += 1.0


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_case_is_kept_refused_wrong_or_broken():
    case, flex = BY_NAME["query-2"], registry.load("baseline/flex")
    assert vllm.judge(flex, case, "cpu") == (vllm.KEPT, "")
    assert vllm.judge(flex, BY_NAME["sinks-off"], "cpu")[0] == vllm.REFUSED
    assert vllm.judge(Wrong(), case, "cpu")[0] == vllm.WRONG
    assert vllm.judge(Wrong(RuntimeError("no")), case, "cpu") == (vllm.BROKEN, "RuntimeError: no")


def test_without_the_kernel_the_command_says_why(capsys, monkeypatch):
    def absent(kernel_id):
        raise registry.Unavailable(f"{kernel_id}: vLLM's Triton kernel is not here")

    monkeypatch.setattr(registry, "load", absent)
    assert diptych(["study", "vllm"]) == 5
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("baseline/vllm_triton: unavailable: ") and "vLLM's Triton kernel is not here" in said


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["--nosuch"], 2)])
def test_help_and_usage_need_no_kernel(words, code, monkeypatch, capsys):
    monkeypatch.setattr(registry, "load", None)
    with pytest.raises(SystemExit) as ended:
        diptych(["study", "vllm", *words])
    assert ended.value.code == code
    assert "python -m compare study vllm" in "".join(capsys.readouterr())
