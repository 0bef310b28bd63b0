"""Signals of the user and of the system: what asks a program to end is heard when it can be heard well.

Handlers are a matter of the main thread; anywhere else nothing happens here. Those that were there come back.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["ending_early", "held_back", "time_limit"]

# What a batch system, a service manager or a terminal that closes sends; not every system has all of them.
_REQUESTS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def ending_early(once: bool = False) -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does: `KeyboardInterrupt`, unless the program handles or ignores them.

    With `once`, the first of them and of Ctrl-C is the only one that counts within the block, and those that came are
    ignored from then on: it is for programs that have only to keep what was learnt by then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1 or not once:
            raise KeyboardInterrupt

    numbers = [number for number in _REQUESTS if signal.getsignal(number) is signal.SIG_DFL]
    if once and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    handlers = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            # A handler of ours would not outlive the interpreter, which takes its time to end.
            signal.signal(number, signal.SIG_IGN if once and number in came else handler)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let the end of some time do what Ctrl-C does: a fit keeps what it has learnt, anything else is interrupted.

    Where there are no timers, or in another thread, time has no end.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Keep Ctrl-C, SIGTERM and SIGHUP until the end of a block, which is short, and deliver them then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, *_REQUESTS)
        if signal.getsignal(number) is not None
    }
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)
