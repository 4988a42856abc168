"""What a command's work ends in becomes its exit code."""

import io
import os
import signal
import sys

import pytest

from compare import exits


def raising(error):
    raise error


def test_usage_errors_are_printed_and_ctrl_c_is_130(capsys):
    assert exits.ending(lambda: exits.GATE, (ValueError,)) == 4
    assert exits.ending(lambda: raising(ValueError("--rows: found 0")), (KeyError, ValueError)) == 2
    assert capsys.readouterr().err == "--rows: found 0\n"
    assert exits.ending(lambda: raising(KeyboardInterrupt()), ()) == 130


def test_a_character_that_the_encoding_lacks_is_escaped(monkeypatch):
    """A folder's name, in a container whose Python writes ASCII."""
    bytes_ = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(bytes_, "ascii", "strict"))
    assert exits.ending(lambda: print("1 cell; r-\xfc", flush=True) or exits.OK, ()) == 0
    assert bytes_.getvalue() == b"1 cell; r-\\xfc\n"


def test_other_errors_are_not_swallowed():
    with pytest.raises(KeyError):
        exits.ending(lambda: raising(KeyError("a bug")), (ValueError,))


def test_sigterm_ends_as_ctrl_c_does_and_the_callers_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), exits.terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("words", [["--out", ""], ["--out="], ["--resume="], [""], ["--out", "x", "--gpu", ""]])
def test_an_empty_word_is_refused_by_every_command(words, capsys):
    """`--out ''` counted as none given, so the run went elsewhere; as a path it was this folder."""
    parser = exits.Parser()
    for name in ("--out", "--gpu"):
        parser.add_argument(name)
    parser.add_argument("--resume", nargs="?", const="")
    assert parser.parse_args(["--out", "a=", "--resume"]).resume == ""
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == exits.USAGE
    assert "found '', allowed a word that is not empty" in capsys.readouterr().err
