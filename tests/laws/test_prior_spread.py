"""Far from data every model says what the data are like: the prior spread of an output is about that of its data."""

import functools

import numpy as np
import pytest

import manygp

from .registry import ESTIMATORS

# Published starts know nothing of the data, and a plain network does not keep what is far apart.
LEFT_OUT = ("paper", "raw data", "diagonal latents")
CASES = {name: case for name, case in ESTIMATORS.items() if not any(word in name for word in LEFT_OUT)} | {
    "tlvmogp, matern": (manygp.TLVMOGP, {"latent_dim": 2, "num_inducing": 15, "epochs": 3, "kernel": "matern32"}),
    "tlvmogp, neighbours": (manygp.TLVMOGP, {"latent_dim": 2, "num_inducing": 15, "epochs": 3, "num_neighbors": 6}),
    "tlvmogp, one scale": (manygp.TLVMOGP, {"latent_dim": 2, "num_inducing": 15, "epochs": 3, "standardize": "global"}),
}


@functools.cache
def table():
    """Mixtures of two draws of a GP, many lengthscales long, and of one that all outputs share, around a level."""
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0.0, 10.0, 60))[:, None]
    waves = np.cos(x * rng.standard_normal(200) / 0.6 + rng.uniform(0.0, 2.0 * np.pi, 200)) / 10.0
    shared, *mixed = (waves @ rng.standard_normal((200, 3))).T
    Y = 20.0 + shared[:, None] + np.stack(mixed, 1) @ rng.uniform(-1.0, 1.0, (2, 6))
    Y += 0.05 * rng.standard_normal(Y.shape)
    Y[rng.uniform(size=Y.shape) < 0.1] = np.nan
    return x, Y


@pytest.mark.parametrize("name", CASES)
def test_the_prior_of_every_output_has_the_spread_of_its_data(name):
    estimator, settings = CASES[name]
    x, Y = table()
    model = estimator(**settings | {"device": "cpu", "progress": False}).fit(x, Y)
    for away in (30.0, 1e4):
        far = model.predict_dist(x[-1:] + away)
        spread = np.nanstd(Y, 0)
        assert (far.std[0] > 0.5 * spread).all(), far.std[0] / spread
        assert (far.std[0] < 2.0 * spread).all(), far.std[0] / spread
        assert (np.abs(far.mean[0] - np.nanmean(Y, 0)) < spread).all()


@pytest.mark.parametrize("estimator", [manygp.IndGP, manygp.GMOGP], ids=["ind-gp", "g-mogp"])
def test_one_row_says_nothing_of_other_inputs(rng, estimator):
    Y = 3.0 + rng.standard_normal((1, 6))
    model = estimator(device="cpu", progress=False).fit([[0.0]], Y)
    far = model.predict_dist([[50.0]])
    # A single cell says little about the size of its output, and about its noise.
    assert 0.5 < far.std.mean() / Y.std() < 2.0
    if estimator is manygp.GMOGP:
        assert (far.std > 0.5 * Y.std()).all()
        assert (model.predict_dist([[0.0]]).std > 0.2 * Y.std()).all()
