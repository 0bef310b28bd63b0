"""Runs and records: resumed after a kill, failures recorded, data sets and models from outside."""

import importlib
import json
import os
import signal
import subprocess
import sys
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
    campaign,
    carry_out_all,
    every_run,
    find_tables,
    parse_seeds,
    read_records,
    register_dataset,
    register_model,
    register_settings,
    register_table,
    runner,
    runs_of,
    sources,
)
from manygp.paper.campaign import state_of, status
from manygp.paper.records import KEYS, METRICS, claim, read_record, write_record
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


# A process that is lent tests of other files comes back to this one, and registers once all the same.
@pytest.fixture(scope="session", autouse=True)
def outside() -> None:
    exec(OUTSIDE, {"__name__": "outside"})


def _waves(*seeds: int) -> list[Run]:
    return runs_of(find_tables("waves"), "fast", seeds or [0])


def _timeless(record: dict) -> dict:
    """A record without what differs between two equal runs."""
    machine = {key: value for key, value in record["machine"].items() if key != "date"}
    return record | {
        "train_seconds": None,
        "cpu_seconds": None,
        "score_seconds": None,
        "peak_memory_mb": None,
        "machine": machine,
    }


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
def test_a_process_killed_twice_resumes_to_the_same_records(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    finished: dict[Path, int] = {}
    for _ in range(2):
        process = os.fork()
        if process == 0:
            os.environ["WAVES_PAUSE"] = "0.3"
            carry_out_all(_waves(0, 1), killed, progress=False)
            os._exit(0)
        _kill_after_a_record(process, killed, len(finished))
        os.waitpid(process, 0)
        now = {path: path.stat().st_mtime_ns for path in killed.glob("*.json")}
        assert len(finished) < len(now) < 6
        assert finished.items() <= now.items()
        finished = now
    for folder in (killed, whole):
        carry_out_all(_waves(0, 1), folder, progress=False)
    assert finished.items() <= {path: path.stat().st_mtime_ns for path in killed.glob("*.json")}.items()
    records = [[_timeless(record) for record in read_records(folder)] for folder in (killed, whole)]
    assert len(records[0]) == 6
    assert records[0] == records[1]
    assert not list(killed.glob(".*"))


def _kill_after_a_record(process: int, folder: Path, before: int) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*.json"))) <= before and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL is of systems that have fork")
def test_two_at_a_time_from_the_command_line_are_killed_twice(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OUTSIDE)
    folder = tmp_path / "runs"
    words = ["run", "--with", str(tmp_path / "own.py"), "--table", "waves", "--seeds", "0-3", "--jobs", "2"]
    command = [sys.executable, "-m", "manygp", "paper", *words, "--out", str(folder)]
    environment = os.environ | {"WAVES_PAUSE": "1.0"}
    for _ in range(2):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        _kill_after_a_record(process.pid, folder, len(list(folder.glob("*.json"))))
        process.wait()
    subprocess.run(command, env=environment | {"WAVES_PAUSE": "0"}, stderr=subprocess.DEVNULL, check=False)
    # Workers of a killed process may have been at some still, and write those records themselves.
    deadline = time.monotonic() + 30
    while len(list(folder.glob("*.json"))) < 12 and time.monotonic() < deadline:
        time.sleep(0.1)
    records = list(read_records(folder))
    assert sorted((r["model"], r["seed"]) for r in records) == sorted(
        (run.model, run.seed) for run in _waves(0, 1, 2, 3)
    )
    assert {r["machine"]["threads"] for r in records} <= {1, max(1, (os.cpu_count() or 1) // 2)}


def test_what_other_sources_made_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = _waves()[:2]
    carry_out_all(runs, tmp_path, progress=False)
    assert [state_of(run, read_record(run.path(tmp_path))) for run in runs] == ["done", "done"]
    monkeypatch.setattr(campaign, "_sources", lambda model: "newer")
    monkeypatch.setattr(runner, "sources_of", lambda model: "newer")
    assert status(runs, tmp_path)[0].counts == {"done": 0, "missing": 0, "stale": 2, "failed": 0}
    again = carry_out_all(runs, tmp_path, progress=False)
    assert [record["sources"] for record in again] == ["newer"] * 2
    assert status(runs, tmp_path)[0].counts["done"] == 2


def test_a_run_begins_only_if_it_would_end_in_time(tmp_path: Path) -> None:
    known = carry_out_all(_waves(0), tmp_path, progress=False)
    for run, record, seconds in zip(_waves(0), known, (1.0, 7_200.0, None), strict=True):
        write_record(run.path(tmp_path), record | {"cpu_seconds": seconds, "score_seconds": 0.0})
    carry_out_all(_waves(0, 1)[:5], tmp_path, hours=1.0, progress=False)
    # Of the other seed, the run whose like took two hours was left for later.
    assert [run.path(tmp_path).is_file() for run in _waves(0, 1)] == [True, True, True, True, False, False]


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path: Path) -> None:
    first, second = _waves()[:2]
    with claim(first.path(tmp_path)) as is_ours:
        assert is_ours
        (record,) = carry_out_all([first, second], tmp_path, progress=False)
    assert record["settings"] == {"value": 0.5}


def test_a_data_set_that_cannot_be_had_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object) -> None:
        raise DataError("it is nowhere")

    monkeypatch.setattr(runner, "find", refuse)
    absent = Run("eeg", "interpolation", "fast", 0)
    assert len(carry_out_all([absent, _waves()[0]], tmp_path, progress=False)) == 1
    with pytest.raises(DataError, match="it is nowhere"):
        carry_out_all([absent], tmp_path, progress=False)


def test_the_campaign_fills_every_table_once_before_other_seeds() -> None:
    runs = every_run()
    assert len({run.key for run in runs}) == len(runs)
    every = {run.key for run in runs_of(find_tables("all"), "fast", [0, 1]) if run.dataset != "waves"}
    assert every <= {run.key for run in runs}
    seeds = [run.seed for run in runs]
    assert 0 not in seeds[seeds.index(1) :]
    assert {run.seed for run in runs if run.dataset == "eeg"} == {0, 1, 2, 3, 4}
    assert [run.model for run in runs[:4]] == ["interpolation", "nearest-rows", "ridge-outputs", "low-rank"]
    assert {run.model for run in runs if run.preset == "paper"} >= {"tlvmogp", "ind-gp", "sv-lmc"}


def test_a_digest_is_of_the_code_that_a_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "theirs"
    package.mkdir()
    files = {"__init__": "from theirs.model import Model\n", "below": "depth = 3\n", "other": "x = 1\n"}
    files["model"] = "from theirs.below import depth\nclass Model:\n    size = depth\n"

    def digest(**changes: str) -> str | None:
        for name, text in (files | changes).items():
            (package / f"{name}.py").write_text(text)
        for known in (sources._digest, sources._path, sources._parsed, sources._code):
            known.cache_clear()
        return sources.digest_of(importlib.import_module("theirs").Model)

    first = digest()
    assert digest(other="x = 2\n") == first
    assert digest(model='"""A model."""\n' + files["model"].replace("class", "# why\nclass")) == first
    assert digest(below="depth = 4\n") != first
    assert sources.digest_of(type("Typed", (), {"__module__": "nowhere"})) is None


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
