"""Genes in space: shares of variance that are right where they are known, and sentences for what cannot be used."""

import numpy as np
import pytest

from manygp import DataError, IndGP, SettingError
from manygp.spatial import denoise, variable_genes

anndata = pytest.importorskip("anndata")


@pytest.fixture(scope="module")
def section():
    """Four genes whose values, not counts, vary in space by more and more."""
    rng = np.random.default_rng(0)
    places = rng.uniform(size=(80, 2))
    pattern = np.sin(5 * places[:, :1]) + np.cos(5 * places[:, 1:])
    pattern = (pattern - pattern.mean()) / pattern.std()
    values = 3.0 + pattern * np.sqrt([0.0, 0.3, 0.6, 0.9]) + rng.normal(size=(80, 4)) * np.sqrt([1.0, 0.7, 0.4, 0.1])
    return anndata.AnnData(values, obsm={"spatial": places})


@pytest.fixture(scope="module")
def model(section):
    return denoise(section, IndGP(progress=False))


def test_shares_are_those_of_the_table(section, model):
    ranked = variable_genes(section, model, num_draws=40)
    assert ranked.index.tolist() == ["3", "2", "1", "0"]
    assert ranked["rank"].tolist() == [1, 2, 3, 4]
    assert ranked["spatial_share"].to_numpy() == pytest.approx([0.9, 0.6, 0.3, 0.0], abs=0.17)
    assert (ranked["lower90"] <= ranked["spatial_share"]).all()
    assert (ranked["spatial_share"] <= ranked["upper90"]).all()
    assert section.var["manygp_spatial_share"].tolist() == ranked.sort_index()["spatial_share"].tolist()


def test_denoised_values_are_nearer_to_the_pattern(section, model):
    smooth = section.layers["manygp_mean"][:, 1]
    best = section.layers["manygp_mean"][:, 3]
    assert abs(np.corrcoef(smooth, best)[0, 1]) > abs(np.corrcoef(section.X[:, 1], best)[0, 1])


def test_what_cannot_be_used_is_said_in_a_sentence(section, model):
    with pytest.raises(DataError, match="adata is a ndarray; give an AnnData"):
        variable_genes(section.X)
    with pytest.raises(DataError, match="no obsm"):
        denoise(anndata.AnnData(section.X))
    with pytest.raises(SettingError, match="num_draws=1 is no number of draws"):
        variable_genes(section, model, num_draws=1)
    other = section.copy()
    other.var_names = list("abcd")
    with pytest.raises(DataError, match="'a' is no output of the model"):
        variable_genes(other, model)
