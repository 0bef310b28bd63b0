"""Fits to tables that are not in memory."""

import numpy as np
import pytest
import torch
from scipy import sparse

import manygp
from manygp.data import Grid, adapters, grid, tiles
from manygp.data.stored import StoredArray, StoredRows
from manygp.errors import DataError, SettingError

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(0.0, 6.0, (120, 1)), axis=0)
F = np.sin(X + np.linspace(0.0, 3.0, 12))
Y = np.where(RNG.random(F.shape) < 0.2, np.nan, F + 0.1 * RNG.standard_normal(F.shape))
COUNTS = RNG.poisson(np.exp(F)).astype(np.float64)
SETTINGS = {"num_inducing": 20, "latent_dim": 2, "epochs": 4, "num_neighbors": 0, "progress": False}


def rows_of(values):
    matrix = sparse.csr_array(values)
    return StoredRows(matrix.data, matrix.indices, matrix.indptr, values.shape[1])


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_where_all_of_it_fits_the_model_is_that_of_memory(likelihood):
    is_count = likelihood == "poisson"
    held = COUNTS if is_count else Y
    stored = rows_of(held) if is_count else StoredArray(held)
    settings = SETTINGS | {"likelihood": likelihood, "corrections": ("noise",)}
    ours, theirs = (manygp.TLVMOGP(**settings).fit(X, values).model_.state_dict() for values in (stored, held))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("kind", [manygp.SVLMC, manygp.LVMOGP])
def test_others_that_are_trained_on_batches_read_them_too(kind):
    ours, theirs = (kind(epochs=1, progress=False).fit(X, y).model_.state_dict() for y in (StoredArray(Y), Y))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_tiles_and_a_part_for_the_survey_learn_the_same(monkeypatch):
    whole = manygp.TLVMOGP(**SETTINGS, corrections=()).fit(X, Y)
    monkeypatch.setattr(tiles, "TILE_CELLS", 400)
    monkeypatch.setattr(tiles, "_TILE_ROWS", 40)
    monkeypatch.setattr(grid, "_PART_CELLS", 40 * 12)
    table = Grid(X, StoredArray(Y))
    table.Y.block = (5, 12)
    parts = manygp.TLVMOGP(**SETTINGS).fit(table)
    assert "row_effects" not in [made.name for made in parts.history_.corrections]
    errors = [model.evaluate(X, F)["mse"] for model in (whole, parts)]
    assert errors[1] < 1.5 * errors[0] < 0.02
    with pytest.raises(DataError, match="needs all 120 x 12 cells in memory"):
        parts.evaluate(table)


def test_what_needs_all_cells_says_so(monkeypatch):
    with pytest.raises(SettingError, match=r"OILMM needs all cells in memory.*120 x 12.*y\[:\]"):
        manygp.OILMM().fit(X, StoredArray(Y))
    with pytest.raises(SettingError, match="num_neighbors=5 needs all cells in memory"):
        manygp.TLVMOGP(num_neighbors=5).fit(X, StoredArray(Y))
    wrong = COUNTS.copy()
    wrong[100, 3] = -1.0
    monkeypatch.setattr(grid, "_PART_CELLS", 12)
    monkeypatch.setattr(grid, "_LEAST_STRETCHES", 1)
    with pytest.raises(DataError, match="-1"):
        manygp.TLVMOGP(**SETTINGS | {"likelihood": "poisson", "num_inducing": 5}).fit(X, rows_of(wrong))


def test_exposure_and_checkpoint_of_a_stored_table(monkeypatch, tmp_path):
    monkeypatch.setattr(adapters, "SMALL", 10)
    settings = SETTINGS | {"likelihood": "poisson", "epochs": 2}
    model = manygp.TLVMOGP(**settings).fit(X, rows_of(COUNTS), exposure="auto", checkpoint=tmp_path / "run")
    again = manygp.TLVMOGP(**settings).fit(X, rows_of(COUNTS), exposure="auto", checkpoint=tmp_path / "run")
    assert model.exposure_.shape == (120,)
    np.testing.assert_array_equal(model.latent_mean_, again.latent_mean_)
    other = COUNTS.copy()
    other[3, 3] += 1.0
    with pytest.raises(manygp.errors.ModelFileError, match="another fit"):
        manygp.TLVMOGP(**settings).fit(X, rows_of(other), exposure="auto", checkpoint=tmp_path / "run")
