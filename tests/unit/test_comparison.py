"""Comparisons: cells are held out as the table's own gaps are, and the plainest good method is recommended."""

import numpy as np
import pandas as pd
import pytest

import manygp
from manygp import TLVMOGP, SettingError
from manygp.baselines import Interpolation
from manygp.data import as_table, gap_split

TINY = {"latent_dim": 1, "num_inducing": 6, "epochs": 2, "progress": False}
X = np.linspace(0.0, 9.0, 40)


def mixed(noise=0.0):
    """Outputs that are one rough signal up to a factor, each with a stretch of its own missing."""
    rng = np.random.default_rng(0)
    signal = rng.normal(size=40)
    Y = signal[:, None] * np.linspace(1.0, 2.0, 8) + noise * rng.normal(size=(40, 8))
    for p in range(8):
        Y[4 * p : 4 * p + 6, p] = np.nan
    return Y


def test_what_others_tell_beats_interpolation_where_functions_are_rough():
    frame = pd.DataFrame(mixed(0.05), pd.Index(X, name="t"), list("abcdefgh"))
    found = manygp.compare(frame, models=["interpolation", "low-rank"], refit=True)
    assert found.recommended == "low-rank"
    assert found.scores.index[0] == "low-rank"
    assert found.scores.loc["low-rank", "rmse"] < 0.3 < found.scores.loc["interpolation", "rmse"]
    assert type(found.fitted).__name__ == "LowRank"
    assert "Use low-rank" in repr(found)
    assert "<table" in found._repr_html_()
    assert len(found.errors) == found.num_cells
    assert np.isclose((found.errors["low-rank"] ** 2).mean() ** 0.5, found.scores.loc["low-rank", "rmse"])


def test_small_tables_have_several_rounds(monkeypatch, capsys):
    frame = pd.DataFrame(mixed(0.05), pd.Index(X, name="t"), list("abcdefgh"))
    many = manygp.compare(frame, models=["interpolation", "low-rank"], progress=True)
    assert "[round 2, 1/2] interpolation" in capsys.readouterr().err
    monkeypatch.setattr(manygp.comparison, "_MOST_ROUNDS", 1)
    one = manygp.compare(frame, models=["interpolation", "low-rank"])
    assert many.num_cells > 2 * one.num_cells
    # The first round is the same, and further ones hold out other cells.
    first = many.errors.iloc[: one.num_cells]
    pd.testing.assert_frame_equal(first, one.errors)
    assert not np.isin(many.errors["low-rank"].iloc[one.num_cells :], first["low-rank"]).all()
    assert len(many.pit) == many.num_cells


def test_interpolation_is_enough_where_functions_are_smooth():
    Y = np.sin(X[:, None] / 3 + np.random.default_rng(0).uniform(0, 6, 6))
    Y[np.random.default_rng(1).random(Y.shape) < 0.1] = np.nan
    found = manygp.compare(X[:, None], Y, models={"mine": TLVMOGP(**TINY), "interpolation": Interpolation()})
    assert found.recommended == "interpolation"
    assert found.reason.startswith("Interpolation is enough")
    assert found.scores.loc["mine", "seconds"] > 0


def test_methods_without_time_are_told_of(capsys):
    Y = mixed()
    endless = TLVMOGP(**TINY | {"epochs": 10**6})
    found = manygp.compare(X[:, None], Y, models=["interpolation", endless], seconds=4.0, progress=True)
    # How far it came is a matter of the machine.
    assert found.scores.loc["TLVMOGP", "note"] in ("stopped when its time was up", "not within the time")
    assert found.scores.loc["TLVMOGP", "seconds"] < 60
    assert "[2/2] TLVMOGP" in capsys.readouterr().err
    with pytest.raises(SettingError, match="No method finished"):
        manygp.compare(X[:, None], Y, models=[TLVMOGP(**TINY)], seconds=1e-3)


def test_unknown_methods_are_refused():
    with pytest.raises(SettingError, match="no method 'kriging'; choose from: interpolation"):
        manygp.compare(X[:, None], mixed(), models=["kriging"])
    with pytest.raises(SettingError, match="is no model"):
        manygp.compare(X[:, None], mixed(), models=[3])
    with pytest.raises(SettingError, match="models is empty"):
        manygp.compare(X[:, None], mixed(), models=[])


def test_whole_rows_are_held_out_where_whole_rows_are_missing():
    Y = np.ones((40, 5))
    Y[10:16] = np.nan
    train, test = gap_split(as_table(X[:, None], Y), np.random.default_rng(0))
    lost = test.count_per_input()
    assert set(lost) == {0, 5}
    assert (train.count_per_input()[lost > 0] == 0).all()
    rows = np.flatnonzero(lost)
    assert 4 <= len(rows) <= 12
    # In stretches, as those that are missing.
    assert (np.diff(rows) > 1).sum() <= 2


def test_cells_are_held_out_at_random_where_nothing_is_missing():
    train, test = gap_split(as_table(X[:, None], np.ones((40, 5))), np.random.default_rng(0))
    assert test.num_observed == 40
    assert train.num_observed == 160
