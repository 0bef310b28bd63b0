"""Runs and records: resumed after a kill, failures recorded, data sets and models from outside."""

import json
import os
import signal
import time
from pathlib import Path

import joblib
import numpy as np
import pytest

from manygp.data import Grid
from manygp.errors import DataError, SettingError
from manygp.paper import (
    Dataset,
    PaperTable,
    Problem,
    Row,
    Run,
    carry_out_all,
    find_tables,
    parse_seeds,
    read_records,
    register_dataset,
    register_model,
    register_settings,
    register_table,
    runs_of,
)
from manygp.paper.records import KEYS, METRICS, write_record
from manygp.training import History

# A data set, two models and a table as somebody else would add them: nothing inside the package changes.
OUTSIDE = """
import os
import time
import numpy as np
from manygp.data import Grid
from manygp.paper import (
    Dataset, PaperTable, Problem, Row, register_dataset, register_model, register_settings, register_table
)

def waves(seed):
    X = np.linspace(0, 1, 12)[:, None]
    Y = np.sin(6 * X + np.arange(5))
    held = np.random.default_rng(seed).random(Y.shape) < 0.3
    return Problem(Grid(X, Y, mask=~held), Grid(X, Y, mask=held))

class Constant:
    def __init__(self, value=0.0, random_state=0):
        self.value, self.random_state = value, random_state
    def fit(self, X, Y):
        time.sleep(float(os.environ.get("WAVES_PAUSE", "0")))
        return self
    def evaluate(self, X, Y):
        return {"mse": float(np.nanmean((Y - self.value - 0.01 * self.random_state) ** 2))}

def broken():
    raise ValueError("this model\\nis broken")

register_dataset(Dataset("waves", "Waves", waves))
register_model("constant", Constant, "A constant")
register_model("broken", broken)
register_settings("waves", "constant", "fast", {"value": 0.25})
register_table(PaperTable("waves", "Waves", ("test_mse",), (
    Row("quarter", "waves", "constant", {}, {"test_mse": (0.5, 0.1)}),
    Row("half", "waves", "constant", {"value": 0.5}),
    Row("broken", "waves", "broken"),
)))
"""


@pytest.fixture(scope="module", autouse=True)
def outside() -> None:
    exec(OUTSIDE, {"__name__": "outside"})


def _waves(*seeds: int) -> list[Run]:
    return runs_of(find_tables("waves"), "fast", seeds or [0])


def _timeless(record: dict) -> dict:
    """A record without what differs between two equal runs."""
    machine = {key: value for key, value in record["machine"].items() if key != "date"}
    return record | {"train_seconds": None, "peak_memory_mb": None, "machine": machine}


def test_a_dataset_and_a_model_from_outside(tmp_path: Path) -> None:
    records = carry_out_all(_waves(), tmp_path, progress=False)
    quarter, half, broken = records
    assert list(quarter) == list(KEYS)
    assert list(quarter["metrics"]) == list(METRICS)
    assert quarter["settings"] == {"value": 0.25}
    assert half["settings"] == {"value": 0.5}
    assert 0 < quarter["metrics"]["test_mse"] != half["metrics"]["test_mse"]
    assert quarter["metrics"]["test_nll"] is None
    assert quarter["versions"]["manygp"]
    assert "error" not in quarter
    assert broken["error"].startswith("ValueError: this model is broken (")


def test_finished_runs_are_not_repeated_and_failed_ones_on_demand(tmp_path: Path) -> None:
    runs = _waves()
    carry_out_all(runs, tmp_path, progress=False)
    marked = json.loads(runs[0].path(tmp_path).read_text()) | {"epochs": 77}
    write_record(runs[0].path(tmp_path), marked)
    failed = json.loads(runs[2].path(tmp_path).read_text()) | {"error": "an old error"}
    write_record(runs[2].path(tmp_path), failed)
    assert [r.get("error") for r in carry_out_all(runs, tmp_path, progress=False)] == [None, None, "an old error"]
    again = carry_out_all(runs, tmp_path, retry=True, progress=False)
    assert again[0]["epochs"] == 77
    assert "broken" in again[2]["error"]


def test_an_unknown_model_is_a_failed_run_and_an_unknown_dataset_an_error(tmp_path: Path) -> None:
    (record,) = carry_out_all([Run("waves", "nobody", "fast", 0)], tmp_path, progress=False)
    assert "There is no model 'nobody'" in record["error"]
    with pytest.raises(SettingError, match="There is no data set 'nothing'"):
        carry_out_all([Run("nothing", "constant", "fast", 0)], tmp_path, progress=False)


def test_a_backend_of_joblib_takes_the_runs(tmp_path: Path) -> None:
    alone = carry_out_all(_waves(0, 1), tmp_path / "one", progress=False)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        together = carry_out_all(_waves(0, 1), tmp_path / "two", progress=False)
    assert [record["metrics"] for record in alone] == [record["metrics"] for record in together]


def test_an_interrupted_fit_is_no_result(tmp_path: Path) -> None:
    class Interrupted:
        history_ = History([], "interrupted")

        def fit(self, X: object, Y: object) -> None:
            pass

    register_model("interrupted", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        carry_out_all([Run("waves", "interrupted", "fast", 0)], tmp_path, progress=False)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.slow
def test_workers_need_not_know_what_was_registered(tmp_path: Path) -> None:
    alone = carry_out_all(_waves(), tmp_path / "one", progress=False)
    together = carry_out_all(_waves(), tmp_path / "two", num_jobs=2, progress=False)
    timeless = [[r["metrics"] for r in records] for records in (alone, together)]
    assert timeless[0] == timeless[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork, so that the process to kill starts at once")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_killed_process_resumes_to_the_same_records(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = os.fork()
    if process == 0:
        os.environ["WAVES_PAUSE"] = "0.3"
        carry_out_all(_waves(0, 1), killed, progress=False)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not list(killed.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    finished = {path: path.stat().st_mtime_ns for path in killed.glob("*.json")}
    assert 0 < len(finished) < 6
    for folder in (killed, whole):
        carry_out_all(_waves(0, 1), folder, progress=False)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    records = [[_timeless(record) for record in read_records(folder)] for folder in (killed, whole)]
    assert len(records[0]) == 6
    assert records[0] == records[1]


def test_the_same_run_is_asked_for_once() -> None:
    rows = (Row("a", "waves", "constant"), Row("b", "waves", "constant", {"value": 0.25}))
    table = PaperTable("twice", "Twice", ("test_mse",), rows)
    assert len(runs_of([table], "fast", [0])) == 1


def test_a_record_is_plain_json(tmp_path: Path) -> None:
    run = Run("waves", "constant", "fast", 0, {"freeze": float("inf"), "size": np.int64(3)})
    record = dict.fromkeys(KEYS) | {"settings": run.settings, "metrics": {"test_mse": float("nan")}}
    write_record(run.path(tmp_path), record)
    text = run.path(tmp_path).read_text()
    assert json.loads(text, parse_constant=pytest.fail)["settings"] == {"freeze": "inf", "size": 3}
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(DataError, match="lacks 'dataset'"):
        list(read_records(tmp_path))


@pytest.mark.parametrize(("text", "seeds"), [("0-2", [0, 1, 2]), ("4", [4]), ("0,3,7-8,3", [0, 3, 7, 8])])
def test_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "2-1", "-3"])
def test_wrong_seeds(text: str) -> None:
    with pytest.raises(SettingError, match="--seeds"):
        parse_seeds(text)


def test_names_are_registered_once() -> None:
    with pytest.raises(SettingError, match="already a data set"):
        register_dataset(Dataset("eeg", "EEG", lambda seed: Problem(*[Grid(np.ones((1, 1)), np.ones((1, 1)))] * 2)))
    with pytest.raises(SettingError, match="already a model"):
        register_model("tlvmogp", dict)
    with pytest.raises(SettingError, match="already a table"):
        register_table(PaperTable("eeg", "EEG", (), ()))
    register_settings("waves", "constant", "paper", {"value": 1.0})
