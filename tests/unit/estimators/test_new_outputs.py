"""Outputs that were not in the fit: from a prior, and from a few observations."""

import copy

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import manygp
from manygp import DataError, SettingError
from manygp.likelihoods import NegativeBinomial

from .conftest import TINY, X, places, waves


@pytest.fixture(scope="module")
def known(field):
    """A model whose latents are known to lie near coordinates."""
    S, Y = field
    settings = TINY | {"epochs": 20, "num_inducing": 40}
    return manygp.TLVMOGP(**settings, latent_prior_mean=S, latent_prior_variance=0.01).fit(X, Y)


# -- from a prior ------------------------------------------------------------------------------------------------------


def test_new_places_are_predicted_from_their_coordinates(known, rng):
    S = places(rng, 10)
    dist = known.predict_new_outputs(X, latent_mean=S, latent_variance=0.01)
    truth = waves(S)
    assert dist.shape == (12, 10)
    assert np.mean((dist.mean - truth) ** 2) < 0.1 * truth.var()
    assert dist.score(truth)["coverage90"] > 0.8


def test_an_output_of_the_fit_is_predicted_as_what_it_was_taken_for(known):
    """With the posterior of a trained output for a prior, a new output is that output."""
    latents = known.model_.latents
    raw = known.latent_mean_[:3] * latents.prior_scale.numpy() + latents.prior_center.numpy()
    variance = known.latent_covariance_[:3].diagonal(axis1=1, axis2=2)
    again = known.predict_new_outputs(X, latent_mean=raw, latent_variance=variance)
    np.testing.assert_allclose(again.mean, known.predict(X, outputs=[0, 1, 2]), atol=0.02)


def test_units_of_coordinates_do_not_matter(field):
    S, Y = field
    one, two = (
        manygp.TLVMOGP(**TINY, latent_prior_mean=a * S + b, latent_prior_variance=0.01).fit(X, Y)
        for a, b in ((1.0, 0.0), (1e3, -7.0))
    )
    ours = one.predict_new_outputs(X, latent_mean=S[:4])
    theirs = two.predict_new_outputs(X, latent_mean=1e3 * S[:4] - 7.0)
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=1e-6)


def test_less_is_known_of_a_vaguer_output(known, field):
    S = field[0][:5]
    narrow, wide = (known.predict_new_outputs(X, latent_mean=S, latent_variance=v).variance for v in (0.01, 0.5))
    assert (wide > narrow).mean() > 0.95


@pytest.mark.parametrize("likelihood", ["student-t", "bernoulli", "poisson", "negative-binomial", "zinb", "zip"])
def test_every_likelihood_knows_new_outputs(likelihood, rng):
    rate = np.exp(waves(places(rng, 8)))
    Y = {"student-t": rate, "bernoulli": (rate > 1).astype(float)}.get(likelihood, rng.poisson(rate).astype(float))
    model = manygp.TLVMOGP(**TINY | {"epochs": 1, "num_inducing": 10}, likelihood=likelihood).fit(X, Y)
    dist = model.predict_new_outputs(X, latent_mean=np.zeros((3, 2)))
    assert np.isfinite(dist.mean).all()
    assert np.isfinite(dist.log_prob(np.ones((12, 3)))).all()
    adapted = model.adapt(X, Y[:, :2], output_names=["a", "b"])
    assert np.isfinite(adapted.predict_dist(X, ["a", "b"]).log_prob(Y[:, :2])).all()


def test_what_predict_new_outputs_refuses(known):
    with pytest.raises(DataError, match="latent_mean has 3 columns, but latent vectors have 2"):
        known.predict_new_outputs(X, latent_mean=np.zeros((4, 3)))
    with pytest.raises(DataError, match="latent_variance has shape"):
        known.predict_new_outputs(X, latent_mean=np.zeros((4, 2)), latent_variance=np.ones(3))
    with pytest.raises(DataError, match="no variances"):
        known.predict_new_outputs(X, latent_mean=np.zeros((4, 2)), latent_variance=-1.0)
    with pytest.raises(SettingError, match="give output_coordinates or latent_mean"):
        known.predict_new_outputs(X)
    with pytest.raises(DataError, match="latent_variance holds text"):
        known.predict_new_outputs(X, latent_mean=np.zeros((4, 2)), latent_variance="wide")
    for names in ({"output_names": ["a", "a"]}, {"latent_mean": pd.DataFrame(np.zeros((2, 2)), ["a", "a"])}):
        with pytest.raises(DataError, match="'a' occurs more than once"):
            known.predict_new_outputs(X, **{"latent_mean": np.zeros((2, 2))} | names)


# -- prior means -------------------------------------------------------------------------------------------------------


def test_a_table_by_name_may_come_in_any_order(field, tmp_path):
    S, Y = field
    names = [f"station {i}" for i in range(40)]
    table = pd.DataFrame(S, index=names, columns=["east", "north"])
    shuffled = table.iloc[::-1]
    ours = manygp.TLVMOGP(**TINY, latent_prior_mean=shuffled).fit(X, Y, output_names=names)
    theirs = manygp.TLVMOGP(**TINY, latent_prior_mean=S).fit(X, Y, output_names=names)
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    ours.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.latent_prior_mean, shuffled)
    new = table.iloc[:2].rename(index=str.upper)
    dist = loaded.predict_new_outputs(X, latent_mean=new)
    assert dist.output_names == ("STATION 0", "STATION 1")
    assert np.array_equal(dist.mean, ours.predict_new_outputs(X, latent_mean=new).mean)
    with pytest.raises(SettingError, match="no row for 'station 39'"):
        manygp.TLVMOGP(**TINY, latent_prior_mean=table.iloc[:39]).fit(X, Y, output_names=names)


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_principal_components_as_prior_means(field, preset, tmp_path):
    """They span what the outputs depend on, gaps or not, and of counts those of the logarithm are taken."""
    S, Y = field
    gaps = np.random.default_rng(0).random(Y.shape) < 0.2
    model = manygp.TLVMOGP(**TINY, latent_prior_mean="pca", preset=preset).fit(X, np.where(gaps, np.nan, Y))
    prior = model.model_.latents.prior_mean.numpy()
    assert np.allclose(prior.std(0), 1.0)
    left = S - S.mean(0) - prior @ np.linalg.lstsq(prior, S - S.mean(0), rcond=None)[0]
    assert (left.std(0) < 0.2 * S.std(0)).all()
    model.save(tmp_path / "model")
    assert np.array_equal(manygp.load(tmp_path / "model").predict(X), model.predict(X))
    counts = np.random.default_rng(0).poisson(np.exp(1.0 + Y))
    model = manygp.TLVMOGP(**TINY, latent_prior_mean="pca", likelihood="poisson", preset=preset).fit(X, counts)
    assert np.isfinite(model.predict(X)).all()


def test_the_published_start_takes_its_dimensions_from_prior_means(field):
    S, Y = field
    model = manygp.TLVMOGP(**TINY | {"latent_dim": "auto", "epochs": 1}, latent_prior_mean=S, preset="paper").fit(X, Y)
    assert model.latent_mean_.shape == (40, 2)


@pytest.mark.parametrize("given", ["svd", np.zeros((3, 2)), np.full((40, 2), np.nan), [["a", "b"]] * 40])
def test_prior_means_that_make_no_sense(field, given):
    with pytest.raises(SettingError, match="latent_prior_mean"):
        manygp.TLVMOGP(**TINY, latent_prior_mean=given).fit(X, field[1])


# -- from observations -------------------------------------------------------------------------------------------------


def test_observations_tell_what_an_output_is(free, field):
    Y = field[1][:, 30:]
    errors = []
    for months in (2, 4, 8):
        rows = np.linspace(0, 11, months).astype(int)
        given = np.full_like(Y, np.nan)
        given[rows] = Y[rows]
        adapted = free.adapt(X, given)
        assert adapted.n_outputs_ == 40
        assert adapted.output_names_ == tuple(range(40))
        errors.append(adapted.evaluate(X, np.where(np.isnan(given), Y, np.nan), outputs=list(range(30, 40)))["nll"])
    prior = free.predict_new_outputs(X, latent_mean=np.zeros((10, 2))).score(Y)["nll"]
    assert prior > errors[0] > errors[1] > errors[2]


def test_everything_else_stays_as_it_was(free, field):
    before = {key: value.clone() for key, value in free.model_.state_dict().items()}
    adapted = free.adapt(X, field[1][:, 30:])
    assert all(torch.equal(value, before[key]) for key, value in free.model_.state_dict().items())
    assert free.n_outputs_ == 30
    np.testing.assert_allclose(adapted.latent_mean_[:30], free.latent_mean_)
    np.testing.assert_allclose(adapted.predict(X)[:, :30], free.predict(X), atol=1e-3)


def test_outputs_are_adapted_to_one_by_one(free, field, monkeypatch):
    """The same whether alone, among others, or in parts."""
    Y = field[1][:, 30:]
    together = free.adapt(X, Y).latent_mean_[30:]
    alone = free.adapt(X, Y[:, 3]).latent_mean_[30]
    np.testing.assert_allclose(together[3], alone, atol=1e-3)
    monkeypatch.setattr("manygp.estimators.adapted._ADAPTED_CELLS", 50)
    np.testing.assert_allclose(free.adapt(X, Y).latent_mean_[30:], together, atol=1e-3)


def test_an_output_of_the_fit_comes_back_to_where_it_was(free, field):
    adapted = free.adapt(X, field[1][:, :5])
    sd = np.sqrt(free.latent_covariance_[:5].diagonal(axis1=1, axis2=2))
    assert (np.abs(adapted.latent_mean_[30:] - free.latent_mean_[:5]) < 2.5 * sd).mean() > 0.9


def test_without_observations_an_output_is_what_is_usual(free):
    Y = np.full((12, 2), np.nan)
    Y[0, 0] = 0.0
    adapted = free.adapt(X, Y)
    np.testing.assert_allclose(adapted.latent_mean_[31], free.latent_mean_.mean(0), atol=1e-6)
    assert (adapted.predict_dist(X, [31]).variance >= 0.9 * adapted.predict_dist(X, [30]).variance).all()


@pytest.mark.parametrize("standardize", ["output", "global"])
def test_levels_and_scales_of_new_outputs_are_found(standardize, rng):
    S = places(rng, 40)
    scale, center = np.exp(rng.normal(size=40)), 5.0 * rng.standard_normal(40)
    Y = center + scale * waves(S)
    model = manygp.TLVMOGP(**TINY | {"epochs": 30, "num_inducing": 40}, standardize=standardize).fit(X, Y[:, :30])
    given = np.where(np.arange(12)[:, None] % 2, np.nan, Y[:, 30:])
    adapted = model.adapt(X, given).predict(X, outputs=list(range(30, 40)))
    error = ((adapted - Y[:, 30:]) ** 2)[1::2].mean()
    assert error < 0.1 * Y[1::2, 30:].var()


def test_parameters_of_the_likelihood_are_found(rng):
    """Twenty outputs hardly more dispersed than a Poisson, twenty far more; new ones of either kind are told apart."""
    T = np.linspace(0.0, 1.0, 60)[:, None]
    dispersion = np.where(np.arange(48) % 2, 2.0, 0.02)
    mean = np.exp(3.0 + np.sin(6.0 * T) * rng.standard_normal(48))
    Y = rng.negative_binomial(1.0 / dispersion, 1.0 / (1.0 + mean * dispersion)).astype(float)
    likelihood = NegativeBinomial(40, per_output=True)
    model = manygp.TLVMOGP(**TINY | {"epochs": 20, "latent_dim": 1}, likelihood=likelihood).fit(T, Y[:, :40])
    adapted = model.adapt(T, Y[:, 40:])
    found = adapted.model_.likelihood.log_dispersion.detach().numpy()[40:]
    assert found[1::2].min() > found[::2].max() + 1.0


def test_adapted_models_are_saved(free, field, tmp_path):
    adapted = free.adapt(X, pd.DataFrame(field[1][:, 30:32], columns=["a", "b"]))
    adapted.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model")
    assert loaded.output_names_[-2:] == ("a", "b")
    ours, theirs = loaded.predict_dist(X), adapted.predict_dist(X)
    assert np.array_equal(ours.mean, theirs.mean)
    assert np.array_equal(ours.variance, theirs.variance)


def test_sparse_counts_and_named_inputs_are_adapted_to(rng):
    counts = scipy.sparse.csr_matrix(rng.poisson(np.exp(waves(places(rng, 12)))))
    frame = pd.DataFrame(X, columns=["day"])
    model = manygp.TLVMOGP(**TINY | {"epochs": 1, "num_inducing": 10}, likelihood="poisson").fit(frame, counts[:, :9])
    adapted = model.adapt(frame, counts[:, 9:], exposure=np.ones(12))
    assert np.isfinite(adapted.predict(frame)[:, 9:]).all()
    with pytest.raises(DataError, match="feature names"):
        model.adapt(frame.rename(columns={"day": "night"}), counts[:, 9:])
    with pytest.raises(DataError, match="Poisson observations are"):
        model.adapt(frame, -counts[:, 9:])


def test_names_of_adapted_outputs_are_new(free, field):
    Y = field[1][:, 30:32]
    assert free.adapt(X, Y).output_names_[30:] == (30, 31)
    renamed = copy.copy(free)
    renamed.output_names_ = (*range(29), 31)
    assert renamed.adapt(X, Y).output_names_[30:] == (32, 33)
    assert free.adapt(X, pd.Series(Y[:, 0], name="north")).output_names_[30:] == ("north",)
    with pytest.raises(DataError, match="3 is an output of the fit already"):
        free.adapt(X, pd.Series(Y[:, 0], name=3))


def test_what_adapt_refuses(free, field):
    Y = field[1][:, 30:32]
    with pytest.raises(DataError, match="latent_mean has 1 rows for 2 new outputs"):
        free.adapt(X, Y, latent_mean=np.zeros((1, free.latent_mean_.shape[1])))
    with pytest.raises(DataError, match="0 is an output of the fit already"):
        free.adapt(X, Y, output_names=[0, "new"])
    with pytest.raises(DataError, match="features"):
        free.adapt(np.hstack([X, X]), Y)
    with pytest.raises(SettingError, match="takes no exposure"):
        free.adapt(X, Y, exposure=np.ones(12))
    with pytest.raises(manygp.NotFittedError):
        manygp.TLVMOGP().adapt(X, Y)


@pytest.mark.parametrize("likelihood", ["negative-binomial", "zinb"])
def test_a_single_output_has_rows_of_its_own_as_many_have(likelihood, tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.negative_binomial(2, 0.3, size=(12, 3)).astype(float)
    model = manygp.TLVMOGP(**TINY | {"num_inducing": 8}, likelihood=likelihood).fit(X, counts[:, :1])
    adapted = model.adapt(X, counts[:, 1:])
    assert adapted.model_.likelihood.dispersion.shape == (3,)
    assert np.isfinite(adapted.predict(X)).all()
    for name, saved in (("one", model), ("three", adapted)):
        saved.save(tmp_path / name)
        np.testing.assert_array_equal(manygp.load(tmp_path / name).predict(X), saved.predict(X))


def test_outputs_are_adapted_alike_in_parts_and_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    counts = rng.negative_binomial(2, 0.3, size=(12, 8)).astype(float)
    model = manygp.TLVMOGP(**TINY, likelihood="negative-binomial").fit(X, counts[:, :5])
    whole = model.adapt(X, counts[:, 5:])
    monkeypatch.setattr("manygp.estimators.adapted._ADAPTED_CELLS", 12)
    parts = model.adapt(X, counts[:, 5:])
    assert parts.model_.likelihood.dispersion.shape == (8,)
    np.testing.assert_allclose(parts.predict(X), whole.predict(X), rtol=1e-3)
