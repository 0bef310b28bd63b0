"""How the command line speaks: results to standard output, remarks and errors to standard error."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from manygp.errors import ManyGPError

__all__ = ["BAD_INPUT", "one_sentence_errors", "print_results", "print_table", "remark"]

BAD_INPUT = 2
_INTERRUPTED = 130

P = ParamSpec("P")


def remark(text: str) -> None:
    """Say something beside the results, if there is still somebody to hear it."""
    with contextlib.suppress(OSError):
        Console(stderr=True, highlight=False, soft_wrap=True).print(escape(text))


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


def one_sentence_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn what a user can cause into one sentence and exit code 2 instead of a traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning  # type: ignore[assignment]
                command(*args, **kwargs)
        except (ManyGPError, OSError) as error:
            _fail(_sentence(error), BAD_INPUT)
        except KeyboardInterrupt:
            _fail("Interrupted; nothing was written.", _INTERRUPTED)

    return wrapped


def _fail(sentence: str, code: int) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]Error:[/] {escape(sentence)}")
    raise typer.Exit(code)


def _sentence(error: Exception) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and not isinstance(error, ManyGPError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror}."
    return " ".join(str(error).split())


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """A warning as a remark, without the line of code that raised it; those meant for developers are left out."""
    if issubclass(category, UserWarning):
        remark(f"Note: {' '.join(str(message).split())}")
