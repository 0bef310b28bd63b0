"""Sparse counts and AnnData in, layers and latents out."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import manygp
from manygp import DataError
from manygp.estimators import ESTIMATORS

anndata = pytest.importorskip("anndata", reason="needs the extra 'anndata'")

RNG = np.random.default_rng(0)
PLACES = RNG.uniform(size=(30, 2))
RATE = np.exp(np.sin(4 * PLACES[:, :1]) + RNG.normal(size=6))
COUNTS = RNG.poisson(RATE).astype(np.int32)
GENES = [f"gene{i}" for i in range(6)]
TINY = {"latent_dim": 2, "num_inducing": 12, "epochs": 3, "num_samples": 4, "device": "cpu", "progress": False}


def section(values=None):
    data = anndata.AnnData(
        sparse.csr_matrix(COUNTS) if values is None else values,
        obs=pd.DataFrame(index=[f"spot{i}" for i in range(30)]),
        var=pd.DataFrame(index=GENES),
    )
    data.obsm["spatial"] = PLACES
    return data


def fitted(*data, **options):
    return manygp.TLVMOGP(likelihood="zinb", **TINY).fit(*data, exposure="auto", **options)


def test_sparse_dense_and_annotated_counts_are_the_same_table():
    models = [fitted(section()), fitted(PLACES, sparse.csc_matrix(COUNTS)), fitted(PLACES, COUNTS)]
    for model in models[1:]:
        np.testing.assert_allclose(model.predict(PLACES), models[0].predict(PLACES), rtol=1e-9)
    assert models[0].output_names_ == tuple(GENES)


def test_counts_may_be_in_a_layer():
    data = section(np.zeros((30, 6)))
    data.layers["counts"] = sparse.csr_matrix(COUNTS)
    model = fitted(data, layer="counts")
    np.testing.assert_allclose(model.predict(data), fitted(section()).predict(PLACES), rtol=1e-9)
    scores = model.evaluate(data, layer="counts")
    assert scores["num_cells"] == COUNTS.size
    assert scores == model.evaluate(PLACES, COUNTS)


def test_what_the_model_says_is_written_back():
    model, data = fitted(section()), section()[:10, ["gene4", "gene1"]].copy()
    model.annotate(data, key="smooth")
    mean, std = model.predict(PLACES[:10], return_std=True, outputs=["gene4", "gene1"])
    np.testing.assert_allclose(data.layers["smooth_mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(data.layers["smooth_std"], std, rtol=1e-6)
    np.testing.assert_array_equal(data.varm["smooth_latent"], model.latent_mean_[[4, 1]])
    model.annotate(data, exposure=np.full(10, 2.0))
    assert (data.layers["manygp_mean"] > data.layers["smooth_mean"]).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_annotates(name):
    data = section(np.sqrt(COUNTS))
    model = ESTIMATORS[name](epochs=2, device="cpu", progress=False).fit(data)
    model.annotate(data)
    assert data.layers["manygp_mean"].shape == (30, 6)
    # Only vectors that belong to outputs go to the variables.
    latents = {"tlvmogp", "lvmogp", "gs-lvmogp"}
    assert ("manygp_latent" in data.varm) == (name in latents)
    if name in latents:
        np.testing.assert_array_equal(data.varm["manygp_latent"], model.latent_mean_)


def test_cells_that_were_held_out_are_evaluated_by_a_mask():
    hidden = RNG.uniform(size=COUNTS.shape) < 0.2
    model, size = fitted(section(), mask=~hidden), np.linspace(0.5, 2.0, 30)
    expected = model.predict_dist(PLACES, exposure=size).score(np.where(hidden, COUNTS, np.nan))
    assert model.evaluate(section(), mask=hidden, exposure=size) == pytest.approx(expected)
    assert expected["num_cells"] == hidden.sum()


def test_columns_of_a_test_set_may_come_in_any_order():
    model, data = fitted(section()), section()
    assert model.evaluate(data[:, ::-1].copy())["nll"] == pytest.approx(model.evaluate(data)["nll"])


def test_what_is_not_there_is_named():
    data = section()
    with pytest.raises(DataError, match="no layer 'counts'"):
        fitted(data, layer="counts")
    with pytest.raises(DataError, match="leave Y out"):
        fitted(data, COUNTS)
    with pytest.raises(DataError, match="belongs to an AnnData"):
        fitted(PLACES, COUNTS, layer="counts")
    model = fitted(data)
    del data.obsm["spatial"]
    with pytest.raises(DataError, match=r"no obsm\['spatial'\]"):
        model.predict(data)
    with pytest.raises(DataError, match="takes an AnnData"):
        model.annotate(PLACES)
