"""The exit codes of every command; docs/measuring.md says what each means."""

OK, WRONG, USAGE, NO_GPU, GATE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
