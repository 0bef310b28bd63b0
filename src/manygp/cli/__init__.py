"""The command line (extra `cli`): `manygp demo`, `fit`, `fill`, `compare`, `report`, `predict`, `info` and more.

Help is asked for more often than a fit, so nothing here imports the library before a command runs.
"""

import signal
import sys

__all__ = ["BAD_INPUT", "FAILED", "INTERRUPTED", "main"]

# Exit codes.
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main() -> None:
    """Entry point of the `manygp` command."""
    # What interrupts an import leaves halves of modules behind; until a command begins, Ctrl-C ends the program itself.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from manygp.cli.commands import app
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing not in ("rich", "typer"):
            raise
        print(
            f"Error: The manygp command needs {missing}, which is not installed; install it with: "
            "pip install 'manygp[cli]'.",
            file=sys.stderr,
        )
        sys.exit(BAD_INPUT)
    app()
