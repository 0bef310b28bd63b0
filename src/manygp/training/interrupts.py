"""Signals of the user and of the system: what asks a program to end is heard when it can be heard well.

Handlers are a matter of the main thread; anywhere else nothing happens here. Those that were there come back.
"""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

# What a batch system, a service manager or a terminal that closes sends; not every system has all of them.
_REQUESTS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def ending_early(once: bool = False) -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does: `KeyboardInterrupt`, unless the program handles or ignores them.

    With `once`, the first of them and of Ctrl-C is the only one that counts within the block, and those that came are
    ignored from then on: it is for programs that have only to keep what was learnt by then.
    """
    came: list[int] = []

    def interrupt(number: int) -> None:
        came.append(number)
        if len(came) == 1 or not once:
            raise KeyboardInterrupt

    numbers = [number for number in _REQUESTS if signal.getsignal(number) is signal.SIG_DFL]
    if once and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    with _heard(interrupt, numbers, ignored=came if once else ()):
        yield


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let the end of some time do what Ctrl-C does: a fit keeps what it has learnt, anything else is interrupted.

    Where there are no timers, or in another thread, time has no end.
    """
    if not _is_main() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    with _heard(interrupt, (signal.SIGALRM,)):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextmanager
def held_back() -> Iterator[None]:
    """Keep Ctrl-C, SIGTERM and SIGHUP until the end of a block, which is short, and deliver them then."""
    came: list[int] = []
    try:
        with _heard(came.append, (signal.SIGINT, *_REQUESTS)):
            yield
    finally:
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


@contextmanager
def noted(came: list[int]) -> Iterator[None]:
    """Write Ctrl-C, SIGTERM and SIGHUP down instead; the second of them interrupts."""

    def note(number: int) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    with _heard(note, (signal.SIGINT, *_REQUESTS)):
        yield


@contextmanager
def _heard(hear: Callable[[int], None], numbers: Iterable[int], ignored: Sequence[int] = ()) -> Iterator[None]:
    """Let a function hear of some signals within a block; those in `ignored` at its end mean nothing afterwards."""
    if not _is_main():
        yield
        return
    # What was not set by Python could not be put back.
    known = [number for number in numbers if signal.getsignal(number) is not None]
    handlers = {number: signal.signal(number, lambda number, frame: hear(number)) for number in known}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # A handler of ours would not outlive the interpreter, which takes its time to end.
            signal.signal(number, signal.SIG_IGN if number in ignored else handler)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
