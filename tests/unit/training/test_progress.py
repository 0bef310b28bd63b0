"""A bar on terminals or on request, silence otherwise."""

import io
import sys

import pytest

from manygp.training import Progress, make_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drawn(progress: Progress) -> str:
    with progress:
        progress.update(1, 4, -0.123456)
        progress.update(4, 4, 0.5)
    return sys.stderr.getvalue()


@pytest.mark.parametrize("wanted", [False, "auto"])
def test_silence(monkeypatch, wanted):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert drawn(make_progress(wanted)) == ""


@pytest.mark.parametrize("wanted", [True, "auto"])
def test_a_bar_with_epochs_and_bound(monkeypatch, wanted):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    text = drawn(make_progress(wanted))
    assert "fitting" in text
    assert "4/4" in text
    assert "0.5000" in text


def test_a_bar_does_not_swallow_errors(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), make_progress(True):
        raise KeyboardInterrupt
