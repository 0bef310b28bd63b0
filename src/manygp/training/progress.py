"""Progress on a terminal, in a notebook, or as a line of the log a minute: epochs, bound per cell, time left."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import TracebackType
from typing import Protocol, TypeVar

from manygp.extras import need

Item = TypeVar("Item")
logger = logging.getLogger("manygp")

# Seconds between two lines of the log, before a bar of items appears, and between two pictures of a bar in a notebook.
_LOG_SECONDS, _BAR_SECONDS, _NOTEBOOK_SECONDS = 60.0, 2.0, 0.5


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


class _Terminal:
    """A bar of rich on standard error."""

    def __init__(self, what: str):
        need("rich", "cli", "progress=True")
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeElapsedColumn()
        left = TextColumn("· left"), TimeRemainingColumn()
        self._bar = RichProgress(*columns, *left, console=Console(stderr=True))
        self._task = self._bar.add_task(what, total=None, words="")
        self._bar.start()

    # A terminal that was closed is no reason to lose a fit.
    def show(self, done: int, total: int, words: str) -> None:
        with suppress(OSError):
            self._bar.update(self._task, completed=done, total=total, words=words)

    def close(self, keep: bool) -> None:
        self._bar.live.transient = not keep
        with suppress(OSError):
            self._bar.stop()


class _Notebook:
    """A bar below the cell of a notebook, which needs no extension."""

    def __init__(self, what: str):
        from IPython.display import HTML, display

        self._what, self._html = what, HTML
        self._started = self._last = time.monotonic()
        self._handle = display(HTML(f"{what} …"), display_id=True)

    def show(self, done: int, total: int, words: str) -> None:
        now = time.monotonic()
        if now - self._last < _NOTEBOOK_SECONDS and done < total:
            return
        self._last = now
        left = _in_words((now - self._started) * max(total - done, 0) / max(done, 1))
        bar = f'<progress value="{done}" max="{max(total, done)}"></progress>'
        self._handle.update(self._html(f"{self._what} {bar} {words} · about {left} left"))

    def close(self, keep: bool) -> None:
        if not keep:
            self._handle.update(self._html(""))


class _Bar:
    """Epochs in a bar."""

    def __init__(self) -> None:
        self._bar = _make_bar("fitting")

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close(keep=True)

    def update(self, epoch: int, total: int, bound_per_cell: float) -> None:
        self._bar.show(epoch, total, f"{epoch}/{total} epochs · bound per cell {bound_per_cell:.4f}")


def make_progress(progress: bool | str) -> Progress:
    """A bar if `progress` is True, or "auto" and somebody is watching; otherwise a line of the log a minute.

    Bars on terminals need rich (extra `cli`), without which "auto" takes the log. False is silent.
    """
    if _has_bar(progress):
        return _Bar()
    return _Log() if progress == "auto" else _Silent()


@contextmanager
def stage(progress: bool | str, what: str) -> Iterator[None]:
    """A bar of unknown length while something is done that has no steps to count."""
    bar = _make_bar(what) if _has_bar(progress) else None
    try:
        yield
    finally:
        if bar is not None:
            bar.close(keep=False)


def tracked(items: Sequence[Item], progress: bool | str, what: str) -> Iterator[Item]:
    """The items; once they take long, a bar or the log tells how far they are, see `make_progress`."""
    started = last = time.monotonic()
    bar = None
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            if bar is None and now - started > _BAR_SECONDS and _has_bar(progress):
                bar = _make_bar(what)
            elif bar is None and progress == "auto" and now - last > _LOG_SECONDS:
                last, left = now, (now - started) * (len(items) - done) / max(done, 1)
                logger.info("%s: %.0f%%, about %s left", what, 100.0 * done / len(items), _in_words(left))
            if bar is not None:
                bar.show(done, len(items), "")
            yield item
    finally:
        if bar is not None:
            bar.close(keep=False)


def is_watched() -> bool:
    """Whether somebody sees what is written: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    # Only notebooks have a kernel, and none runs without IPython.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _has_bar(progress: bool | str) -> bool:
    if progress != "auto":
        return bool(progress)
    return _in_notebook() or (sys.stderr.isatty() and find_spec("rich") is not None)


def _make_bar(what: str) -> _Notebook | _Terminal:
    return _Notebook(what) if _in_notebook() else _Terminal(what)


def _in_words(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6_000
        else f"{seconds / 3600:.1f} h"
    )
