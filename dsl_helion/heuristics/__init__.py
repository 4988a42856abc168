"""Who chooses kernel and config: `generic` anywhere, `fitted/<gpu>` where it was measured, `paper` on request."""
