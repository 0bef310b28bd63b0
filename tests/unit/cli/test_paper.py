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
    command = ["paper", "run", "-d", "climate-demo", "-m", "factorisation", "--set", "rank=2", "--out", str(out)]
    assert _run(*command)[0] == 0
    (path,) = out.glob("*.json")
    record = json.loads(path.read_text())
    assert record["settings"] == {"rank": 2}
    assert 0 < record["metrics"]["test_mse"] < 30
    code, text = _run(*command)
    assert code == 0
    assert "1 of 1 runs have a record already" in text


def test_a_table_can_be_run_in_part(tmp_path: Path) -> None:
    code, text = _run("paper", "run", "--table", "all", "-d", "copernicus", "-m", "gs-lvmogp", "--out", str(tmp_path))
    assert code == 1
    assert "3 records" in text
    assert "3 of failed runs" in text
    assert {path.name.split("_")[0] for path in tmp_path.glob("*.json")} == {"copernicus"}


def test_a_dataset_without_its_file_is_recorded_as_failed(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ["paper", "run", "--dataset", "copernicus", "-m", "tlvmogp", "--seeds", "0-1", "--out", str(out)]
    code, text = _run(*command, "--no-predictions")
    assert code == 1
    assert "failed" in text
    errors = [json.loads(path.read_text())["error"] for path in out.glob("copernicus*.json")]
    assert len(errors) == 2
    assert all("put it as copernicus_thetao_uk.nc into" in error for error in errors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "give --table, or --dataset and --model"),
        (["run", "--table", "egg"], "There is no table 'egg'"),
        (["run", "--table", "eeg", "--set", "rank=2"], "leave out --set"),
        (["run", "--table", "eeg", "--preset", "slow"], "There is no preset 'slow'"),
        (["run", "--table", "eeg", "-m", "oilm"], "No row of table 'eeg' has that model"),
        (["run", "--table", "eeg", "-d", "egg"], "No row of table 'eeg' has that model and data set"),
        (["run", "--table", "eeg", "--seeds", "x"], "--seeds was given 'x'"),
        (["run", "-d", "eeg", "-m", "tlvmogp", "--set", "x=1"], "has no setting 'x'"),
        (["run", "-d", "eeg", "-m", "zz"], "There is no model 'zz'"),
        (["run", "-d", "climate-demo", "-m", "factorisation", "--jobs", "0"], "--jobs was given 0"),
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
    code, text = _run("data", "fetch", "copernicus")
    assert code == 2
    assert "put it as copernicus_thetao_uk.nc" in " ".join(text.split())


def test_tables_are_listed() -> None:
    code, text = _run("paper", "list")
    assert code == 0
    assert "tighter-bound-nll" in text
