"""`manygp paper` and `manygp data`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manygp.cli.commands import app

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No folder of data, and an empty cache."""
    monkeypatch.delenv("MANYGP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def _run(*arguments: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, list(arguments))
    return result.exit_code, result.output


def test_one_model_on_one_dataset(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ["paper", "run", "-d", "climate-demo", "-m", "low-rank", "--set", "rank=2", "--out", str(out)]
    assert _run(*command)[0] == 0
    (path,) = out.glob("*.json")
    record = json.loads(path.read_text())
    assert record["settings"] == {"rank": 2}
    assert 0 < record["metrics"]["test_mse"] < 30
    code, text = _run(*command)
    assert code == 0
    assert "1 of 1 runs have a record already" in text


def test_without_its_files_a_data_set_cannot_be_run(tmp_path: Path) -> None:
    command = ["paper", "run", "--table", "all", "-d", "prostate", "-m", "gs-lvmogp", "--out", str(tmp_path / "runs")]
    code, text = _run(*command)
    assert code == 2
    assert "put it as Visium_FFPE" in " ".join(text.split())
    assert not list(tmp_path.glob("runs/*.json"))


OWN = """
import numpy as np
from manygp.data import Grid
from manygp.paper import Dataset, PaperTable, Problem, Row, register_dataset, register_table

def tides(seed):
    Y = np.sin(np.arange(60.0)[:, None] / 5 + np.arange(6))
    held = np.random.default_rng(seed).random(Y.shape) < 0.2
    X = np.arange(60.0)[:, None]
    return Problem(Grid(X, Y, mask=~held), Grid(X, Y, mask=held))

register_dataset(Dataset("tides", "Tides", tides))
rows = (Row("interpolation", "tides", "interpolation"), Row("low rank", "tides", "low-rank"))
register_table(PaperTable("tides", "Tides", ("test_mse", "test_nll"), rows))
"""


def test_a_table_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    out, own = str(tmp_path / "runs"), str(tmp_path / "own.py")
    assert _run("paper", "run", "--with", own, "--table", "tides", "--seeds", "0-1", "--out", out)[0] == 0
    # What a file has registered stays so within a process.
    code, text = _run("paper", "table", "--table", "tides", "--out", out, "--format", "latex")
    assert code == 0
    assert r"\begin{tabular}{lrrrr}" in text
    assert len([line for line in text.splitlines() if line.startswith(("interpolation &", "low rank &"))]) == 2
    assert "| low rank | – | " in _run("paper", "table", "--table", "tides", "--out", out)[1]
    assert "--with nothing.py is no file" in _run("paper", "run", "--with", "nothing.py")[1]


def test_the_status_tells_what_is_open(tmp_path: Path) -> None:
    code, text = _run("paper", "status", "--out", str(tmp_path))
    assert code == 0
    (line,) = (line for line in text.splitlines() if "eeg  " in line)
    assert "needs eeg.h5" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-d", "eeg"], "give --table, or --dataset and --model"),
        (["run", "--table", "egg"], "There is no table 'egg'"),
        (["run", "--table", "eeg", "--set", "rank=2"], "leave out --set"),
        (["run", "--table", "eeg", "--preset", "slow"], "There is no preset 'slow'"),
        (["run", "--table", "eeg", "-m", "oilm"], "No row of table 'eeg' has that model"),
        (["run", "--table", "eeg", "-d", "egg"], "No row of table 'eeg' has that model and data set"),
        (["run", "--table", "eeg", "--seeds", "x"], "--seeds was given 'x'"),
        (["run", "-d", "eeg", "-m", "tlvmogp", "--set", "x=1"], "has no setting 'x'"),
        (["run", "-d", "eeg", "-m", "zz"], "There is no model 'zz'"),
        (["run", "-d", "climate-demo", "-m", "low-rank", "--jobs", "0"], "--jobs was given 0"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = _run("paper", *arguments)
    assert code == 2
    assert message in " ".join(text.split())


def test_data_is_listed_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run("data", "verify", "eeg") == (0, "eeg.h5: absent\n")
    (tmp_path / "eeg.h5").write_bytes(b"no data")
    monkeypatch.setenv("MANYGP_DATA", str(tmp_path))
    assert _run("data", "verify", "eeg") == (2, "eeg.h5: damaged\n")
    assert "eeg.h5 is here" in _run("data", "fetch", "eeg")[1]
    assert "visium-dlpfc" in _run("data", "list")[1]
    code, text = _run("data", "fetch", "visium-dlpfc")
    assert code == 2
    assert "put it as visium_dlpfc_151673.h5ad" in " ".join(text.split())


def test_tables_are_listed() -> None:
    code, text = _run("paper", "list")
    assert code == 0
    assert "tighter-bound" in text
