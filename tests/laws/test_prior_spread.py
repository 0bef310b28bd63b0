"""Far from data every model says what the data are like: the prior spread of an output is about that of its data."""

import functools

import numpy as np
import pytest

import manygp

from .registry import ESTIMATORS

# Fits beside those of the registry, which have their own starts: with neighbours, with a noise far below the signal.
CASES = {name: ESTIMATORS[name] for name in ESTIMATORS if "paper" not in name and "raw data" not in name} | {
    "tlvmogp, neighbours": (manygp.TLVMOGP, {"latent_dim": 2, "num_inducing": 15, "epochs": 3, "num_neighbors": 6}),
    "tlvmogp, one scale": (manygp.TLVMOGP, {"latent_dim": 2, "num_inducing": 15, "epochs": 3, "standardize": "global"}),
}


@functools.cache
def table():
    """Some cycles of curves of about one size that share a part, around levels of their own."""
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0.0, 10.0, 60))[:, None]
    phases, sizes = np.linspace(0.0, 2.5, 6), np.linspace(1.0, 1.6, 6)
    Y = 20.0 + np.sin(3.0 * x) + sizes * np.cos(2.0 * x + phases) + 0.02 * rng.standard_normal((60, 6))
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
