"""The demo runs from one command, its rivals are what they claim, and its files can be used further."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import manygp
from manygp.cli.commands import app
from manygp.demo.rivals import Filled, low_rank, station_interpolation, station_mean

pytest.importorskip("matplotlib")

RNG = np.random.default_rng(0)


def test_station_mean_and_spread() -> None:
    Y = np.array([[1.0, 5.0], [3.0, np.nan], [np.nan, 7.0]])
    filling = station_mean(Y)
    np.testing.assert_allclose(filling.mean, [[2.0, 6.0]] * 3)
    np.testing.assert_allclose(filling.std, np.sqrt([[2.0, 2.0]] * 3))


def test_interpolation_is_exact_on_lines_and_knows_its_error_elsewhere() -> None:
    x = np.arange(40.0)
    line = np.column_stack([2 * x, 1 - x])
    line[5:9, 0] = np.nan
    np.testing.assert_allclose(station_interpolation(x, line).mean[:, 0], 2 * x)
    walks = np.cumsum(RNG.standard_normal((40, 200)), axis=0)
    gaps = np.zeros(walks.shape, dtype=bool)
    gaps[10:13], gaps[25:32] = True, True
    filling = station_interpolation(x, np.where(gaps, np.nan, walks))
    scores = filling.score(np.where(gaps, walks, np.nan))
    assert scores["coverage90"] == pytest.approx(0.9, abs=0.05)
    # Error bars grow towards the middle of a gap.
    assert filling.std[28, 0] > filling.std[11, 0] > filling.std[10, 0]


def test_low_rank_completes_a_low_rank_table() -> None:
    table = RNG.standard_normal((24, 2)) @ RNG.standard_normal((2, 60)) + 0.05 * RNG.standard_normal((24, 60))
    gaps = RNG.random(table.shape) < 0.3
    filling = low_rank(np.arange(24.0)[:, None], np.where(gaps, np.nan, table))
    scores = filling.score(np.where(gaps, table, np.nan))
    assert scores["mse"] < 0.02
    assert 0.8 < scores["coverage90"] <= 1.0


def test_scores_of_the_right_distribution() -> None:
    values = RNG.normal(3.0, 2.0, (100, 100))
    scores = Filled(np.full(values.shape, 3.0), np.full(values.shape, 2.0)).score(values)
    assert scores["mse"] == pytest.approx(4.0, rel=0.05)
    assert scores["nll"] == pytest.approx(0.5 * np.log(2 * np.pi * 4.0) + 0.5, rel=0.02)
    assert scores["coverage90"] == pytest.approx(0.9, abs=0.01)


def test_demo_writes_figures_tables_and_a_model(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    quick = ["--set", "epochs=2", "--set", "latent_dim=2", "--set", "num_inducing=12", "--set", "progress=false"]
    arguments = ["demo", "--out", str(out), "--stations", "40", "--months", "18", *quick]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    for words in ("40 stations x 18 months", "30% missing", "low-rank matrix completion", "T-LVMOGP", "90% coverage"):
        assert words in result.stdout
    for figure in ("map.png", "series.png", "latents.png", "training.png"):
        assert (out / figure).read_bytes().startswith(b"\x89PNG")
    scores = pd.read_csv(out / "scores.csv", index_col="method")
    assert list(scores.index) == [
        "per-station mean",
        "per-station interpolation",
        "low-rank matrix completion",
        "T-LVMOGP",
    ]
    data, predictions = pd.read_csv(out / "data.csv"), pd.read_csv(out / "predictions.csv")
    assert data.shape == (18, 41)
    assert len(predictions) == 18 * 40
    missing = predictions[~predictions["observed"]]
    assert len(missing) == round(0.3 * 18 * 40)
    model = manygp.load(out / "model")
    np.testing.assert_allclose(predictions["mean"], model.predict(data[["month"]].to_numpy()).reshape(-1), atol=1e-4)


def test_demo_refuses_a_file_as_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = CliRunner().invoke(app, ["demo", "--out", str(file)])
    assert result.exit_code == 2
    assert "is a file" in result.stderr


def test_demo_refuses_before_the_fit_what_it_may_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("mine")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "exists and is not a ManyGP model" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
