"""Progress on the terminal: epochs, bound per cell, time left."""

import sys
from contextlib import suppress
from importlib.util import find_spec
from types import TracebackType
from typing import Protocol

from manygp.extras import need

__all__ = ["Progress", "make_progress"]


class Progress(Protocol):
    """Where the loop reports each epoch; a context manager."""

    def __enter__(self) -> "Progress": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, epoch: int, total: int, bound_per_cell: float) -> None:
        """Show that `epoch` of about `total` epochs are done."""


class _Silent:
    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *exception: object) -> None: ...

    def update(self, epoch: int, total: int, bound_per_cell: float) -> None: ...


class _Bar:
    def __init__(self) -> None:
        need("rich", "cli", "progress=True")
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            TextColumn("fitting"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs · bound per cell {task.fields[bound]}"),
            TimeElapsedColumn(),
            TextColumn("· left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("fitting", total=None, bound="…")

    def __enter__(self) -> "_Bar":
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        # A terminal that was closed is no reason to lose a fit.
        with suppress(OSError):
            self.bar.stop()

    def update(self, epoch: int, total: int, bound_per_cell: float) -> None:
        with suppress(OSError):
            self.bar.update(self.task, completed=epoch, total=total, bound=f"{bound_per_cell:.4f}")


def make_progress(progress: bool | str) -> Progress:
    """A bar if `progress` is True, or "auto" and standard error is a terminal; silence otherwise.

    Bars need rich (extra `cli`), without which "auto" is silent.
    """
    wanted = sys.stderr.isatty() and find_spec("rich") is not None if progress == "auto" else bool(progress)
    return _Bar() if wanted else _Silent()
