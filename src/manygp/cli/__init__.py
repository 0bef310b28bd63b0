"""The command line: `manygp demo`, `fit`, `predict`, `evaluate`, `info`, `paper` and `data`."""

import signal
from typing import Any

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the `manygp` command."""
    # What is imported takes seconds, in which Ctrl-C should end the program without a word.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from manygp.cli.commands import app

    signal.signal(signal.SIGINT, handler)
    app()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'manygp.cli' has no attribute {name!r}")
    from manygp.cli.commands import app

    return app
