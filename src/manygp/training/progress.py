"""Progress on the terminal, or as a line of the log a minute: epochs, bound per cell, time left."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Protocol, TypeVar

from manygp.extras import need

Item = TypeVar("Item")
logger = logging.getLogger("manygp")

# Seconds between two lines of the log, and before a bar appears.
_LOG_SECONDS, _BAR_SECONDS = 60.0, 2.0


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


class _Log(_Silent):
    """A line of the log a minute, at level INFO."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()

    def update(self, epoch: int, total: int, bound_per_cell: float) -> None:
        now = time.monotonic()
        if now - self._last < _LOG_SECONDS:
            return
        self._last = now
        left = (now - self._started) * max(total - epoch, 0) / max(epoch, 1)
        logger.info(
            "epoch %d of about %d, bound per cell %.4f, about %s left", epoch, total, bound_per_cell, _in_words(left)
        )


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
    """A bar if `progress` is True, or "auto" and standard error is a terminal; otherwise a line of the log a minute.

    Bars need rich (extra `cli`), without which "auto" takes the log. False is silent.
    """
    if _has_bar(progress):
        return _Bar()
    return _Log() if progress == "auto" else _Silent()


def tracked(items: Sequence[Item], progress: bool | str, what: str) -> Iterator[Item]:
    """The items; once they take long, a bar or the log tells how far they are, see `make_progress`."""
    started = last = time.monotonic()
    bar = None
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            if bar is None and now - started > _BAR_SECONDS and _has_bar(progress):
                bar = _items_bar(what)
                bar.start()
            elif bar is None and progress == "auto" and now - last > _LOG_SECONDS:
                last, left = now, (now - started) * (len(items) - done) / max(done, 1)
                logger.info("%s: %.0f%%, about %s left", what, 100.0 * done / len(items), _in_words(left))
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done, total=len(items))
            yield item
    finally:
        if bar is not None:
            bar.stop()


def _has_bar(progress: bool | str) -> bool:
    return sys.stderr.isatty() and find_spec("rich") is not None if progress == "auto" else bool(progress)


def _items_bar(what: str) -> Any:
    need("rich", "cli", "progress=True")
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = TextColumn(what), BarColumn(), TextColumn("left"), TimeRemainingColumn()
    bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=None)
    return bar


def _in_words(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6_000
        else f"{seconds / 3600:.1f} h"
    )
