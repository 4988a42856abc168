"""Who chooses kernel and config: `learned/<gpu>.json` as logs teach, `generic` anywhere, `paper` on request."""
