"""Signals to the command line: no traceback, and what was learnt is in the folder."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import manygp

COMMAND = [sys.executable, "-c", "from manygp.cli import main; print('here', flush=True); main()"]
# More epochs than anybody has time for.
ENDLESS = ["--set", "epochs=1000000", "--set", "latent_dim=2", "--set", "num_inducing=8"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    day = np.linspace(0.0, 6.0, 12)
    frame = pd.DataFrame(np.sin(day[:, None] + [0.0, 0.3, 0.6]), index=pd.Index(day, name="day"), columns=list("abc"))
    frame.to_csv(tmp_path / "data.csv")
    return tmp_path


def wait_for_epochs(process: subprocess.Popen, terminal: int) -> None:
    """Wait until the progress bar counts."""
    seen, deadline = b"", time.monotonic() + 60.0
    while b"epochs" not in seen or b"/1000000" not in seen:
        assert time.monotonic() < deadline
        assert process.poll() is None, seen
        seen += os.read(terminal, 4096)


def hear_everything() -> None:
    """What runs in the background may ignore Ctrl-C, and so would its children."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(data: Path) -> tuple[subprocess.Popen, int]:
    """A fit in a terminal of its own."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "fit", str(data / "data.csv"), "--out", str(data / "model"), *ENDLESS]

    def take_terminal() -> None:
        import fcntl
        import termios

        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        hear_everything()

    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
        env=environment,
    )
    os.close(theirs)
    return process, ours


SLOW = pytest.mark.slow


@pytest.mark.parametrize("how", ["term", pytest.param("hang up", marks=SLOW), pytest.param("twice", marks=SLOW)])
def test_a_fit_that_is_ended_is_saved(data: Path, how: str) -> None:
    process, terminal = start(data)
    try:
        wait_for_epochs(process, terminal)
        if how == "hang up":
            os.close(terminal)
        elif how == "term":
            process.send_signal(signal.SIGTERM)
        else:
            for _ in range(5):
                process.send_signal(signal.SIGINT)
                time.sleep(0.02)
        if how != "hang up":
            drain(terminal)
        assert process.wait(60.0) == 0
    finally:
        process.kill()
    assert manygp.load(data / "model").history_.stop_reason == "interrupted"


def drain(terminal: int) -> None:
    """Read what a program writes to its terminal until it has closed it."""
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        os.close(terminal)


@pytest.mark.parametrize("delay", [0.0, 0.2, 1.0])
def test_an_early_end_is_silent(data: Path, delay: float) -> None:
    process = subprocess.Popen(
        [*COMMAND, "fit", str(data / "data.csv"), "--out", str(data / "model"), *ENDLESS, "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_everything,
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60.0)
    assert "Traceback" not in errors
    assert process.returncode in (-signal.SIGINT, 130, 0)
