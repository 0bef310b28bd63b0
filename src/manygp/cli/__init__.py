"""The command line: `manygp demo`, `fit`, `predict`, `evaluate`, `info`, `paper` and `data`."""

from manygp.cli.commands import app, main

__all__ = ["app", "main"]
