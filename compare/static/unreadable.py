"""The one error of everything that reads compiled code."""


class UnreadableCode(RuntimeError):
    """A code object or text without the note, section or line that a fact is read from; the message names it."""
