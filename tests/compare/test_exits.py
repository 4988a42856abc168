"""What a command's work ends in becomes its exit code."""

import os
import signal

import pytest

from compare import exits


def raising(error):
    raise error


def test_usage_errors_are_printed_and_ctrl_c_is_130(capsys):
    assert exits.ending(lambda: exits.GATE, (ValueError,)) == 4
    assert exits.ending(lambda: raising(ValueError("--rows: found 0")), (KeyError, ValueError)) == 2
    assert capsys.readouterr().err == "--rows: found 0\n"
    assert exits.ending(lambda: raising(KeyboardInterrupt()), ()) == 130


def test_other_errors_are_not_swallowed():
    with pytest.raises(KeyError):
        exits.ending(lambda: raising(KeyError("a bug")), (ValueError,))


def test_sigterm_ends_as_ctrl_c_does_and_the_callers_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), exits.terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
