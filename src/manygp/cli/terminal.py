"""How the command line speaks: results to standard output, remarks and errors to standard error."""

import contextlib
import functools
import importlib
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from manygp.cli import BAD_INPUT, INTERRUPTED

P = ParamSpec("P")


def remark(text: str) -> None:
    """Say something beside the results, if there is still somebody to hear it, and no other process says it."""
    if not _is_first():
        return
    with contextlib.suppress(OSError):
        Console(stderr=True, highlight=False, soft_wrap=True).print(escape(text))


def _is_first() -> bool:
    """Whether no other process of torchrun speaks for this one."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["RANK"] == "0"


def print_results(text: str) -> None:
    """Print plain text to standard output, as other programs like to read it."""
    typer.echo(text)


def print_table(title: str, rows: Mapping[str, object]) -> None:
    """Print names and values as a two-column table under its title."""
    typer.echo(title)
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(escape(name), escape(str(value)))
    Console().print(table)


def check_place(path: Path) -> None:
    """Refuse a place for results that cannot be written to: better known before the work than after it."""
    from manygp.errors import SettingError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, *([path] if path.is_dir() else [])):
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        message = f"--out {path} cannot be written ({error.strerror}); name a folder that you may write to."
        raise SettingError(message) from error


def one_sentence_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn what a user can cause into one sentence and exit code 2 instead of a traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        _hear_interrupts()
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning  # type: ignore[assignment]
                command(*args, **kwargs)
        except KeyboardInterrupt:
            _fail("Interrupted; nothing was written.", INTERRUPTED)
        except Exception as error:
            from manygp.errors import ManyGPError, RankError

            if not isinstance(error, ManyGPError | OSError):
                raise
            if not _is_first() and not isinstance(error, RankError):
                # The first has met with the same, and says so.
                raise typer.Exit(BAD_INPUT) from error
            _fail(_sentence(error), BAD_INPUT)

    return wrapped


def _hear_interrupts() -> None:
    """From here on, Ctrl-C is an exception: whatever takes long to import is there."""
    importlib.import_module("manygp.estimators")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _fail(sentence: str, code: int) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]Error:[/] {escape(sentence)}")
    raise typer.Exit(code)


def _sentence(error: Exception) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror}."
    return " ".join(str(error).split())


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """A warning as a remark, without the line of code that raised it; those meant for developers are left out."""
    if issubclass(category, UserWarning):
        remark(f"Note: {' '.join(str(message).split())}")
