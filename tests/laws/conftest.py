"""A small table with gaps, and every registered estimator fitted to it once."""

import functools

import numpy as np
import pytest

from .registry import ESTIMATORS

NAMES = ("a", "b", ("c", 1), 3, "e")


def observations():
    """Correlated curves with outputs of different centre and scale, noise and gaps."""
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(size=(24, 1)), axis=0)
    curves = np.sin(5 * x + np.linspace(0, 2, len(NAMES))) + 0.1 * rng.standard_normal((24, len(NAMES)))
    Y = curves * np.array([1.0, 10.0, 0.1, 3.0, 1.0]) + np.array([0.0, 100.0, -1.0, 0.0, 5.0])
    Y[rng.uniform(size=Y.shape) < 0.25] = np.nan
    return x, Y


def fresh(name):
    """An unfitted estimator of the registry."""
    estimator, settings = ESTIMATORS[name]
    return estimator(**settings)


@functools.cache
def fitted(name):
    """A fitted estimator of the registry; tests must not change it."""
    return fresh(name).fit(*observations(), output_names=NAMES)


@pytest.fixture(params=list(ESTIMATORS))
def model(request):
    return fitted(request.param)
