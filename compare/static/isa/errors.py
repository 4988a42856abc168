"""What ends an execution: code that the model does not know, code that is no kernel of ours, and wrong code."""


class NotExecutable(Exception):
    """The model does not know an instruction or its form; `mnemonic` names it. Never a verdict on the kernel."""

    def __init__(self, mnemonic: str, why: str = "") -> None:
        self.mnemonic = mnemonic
        super().__init__(f"{mnemonic}: {why}" if why else mnemonic)


class ForeignCode(ValueError):
    """Assembly text of something other than a CDNA kernel; the message says what was found and what is allowed."""


class Fault(Exception):
    """The code did what no right kernel does: an address outside the tensors, a race in LDS, a barrier that not all
    waves reach."""
