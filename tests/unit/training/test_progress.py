"""A bar on terminals, in notebooks or on request, a line of the log a minute otherwise."""

import io
import sys
from types import SimpleNamespace

import pytest

from manygp.training import Progress, make_progress
from manygp.training import progress as progress_of_runs


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


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook shows, picture by picture; IPython is a stand-in, which no test should have to install."""
    shown = []

    def display(html, display_id):
        assert display_id
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    return shown


def test_a_bar_in_a_notebook(notebook, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress_of_runs.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert drawn(make_progress("auto")) == ""
    assert notebook[0] == "fitting …"
    assert notebook[1].endswith("1/4 epochs · bound per cell -0.1235 · about 30 s left")
    assert 'value="4" max="4"' in notebook[-1]


def test_what_has_no_steps_is_shown_while_it_lasts(notebook, monkeypatch):
    with progress_of_runs.stage("auto", "looking at the table"):
        assert notebook == ["looking at the table …"]
    assert notebook[-1] == ""
    monkeypatch.delitem(sys.modules, "IPython")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_of_runs.stage("auto", "looking at the table"):
        pass
    assert "looking at the table" in sys.stderr.getvalue()


def test_a_bar_does_not_swallow_errors(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), make_progress(True):
        raise KeyboardInterrupt


def test_a_line_of_the_log_a_minute_where_there_is_no_terminal(monkeypatch, caplog):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr(progress_of_runs.time, "monotonic", lambda: float(next(clock)))
    with caplog.at_level("INFO", "manygp"), make_progress("auto") as progress:
        for epoch in range(1, 7):
            progress.update(epoch, 12, -0.5)
    assert [record.getMessage() for record in caplog.records] == [
        "epoch 3 of about 12, bound per cell -0.5000, about 4 min left",
        "epoch 6 of about 12, bound per cell -0.5000, about 2 min left",
    ]


def test_items_that_take_long_are_tracked(monkeypatch, caplog):
    monkeypatch.setattr(sys, "stderr", Terminal())
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr(progress_of_runs.time, "monotonic", lambda: float(next(clock)))
    assert list(progress_of_runs.tracked(range(4), "auto", "predicting")) == [0, 1, 2, 3]
    assert "predicting" in sys.stderr.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with caplog.at_level("INFO", "manygp"):
        assert list(progress_of_runs.tracked(range(4), "auto", "predicting")) == [0, 1, 2, 3]
    assert caplog.records[0].getMessage().startswith("predicting: 50%")
