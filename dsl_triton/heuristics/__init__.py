"""Who chooses kernel and config: `learned/<gpu>.json` as logs teach, `paper` on request."""
