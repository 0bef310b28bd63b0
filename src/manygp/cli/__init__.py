"""The command line (extra `cli`): `manygp demo`, `fit`, `fill`, `compare`, `report`, `predict`, `info` and more.

Help is asked for more often than a fit, so nothing here imports the library before a command runs.
"""

import sys

__all__ = ["BAD_INPUT", "FAILED", "INTERRUPTED", "main"]

# Exit codes.
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main() -> None:
    """Entry point of the `manygp` command."""
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
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    app()
