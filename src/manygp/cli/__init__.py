"""The command line: `manygp demo`, `fit`, `predict`, `evaluate` and `info`."""

from manygp.cli.commands import app, main

__all__ = ["app", "main"]
