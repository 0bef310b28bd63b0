"""Counts from zero to 10⁵, an output of zeros alone, and a start anywhere: no natural step leads to nonsense."""

import copy
import functools

import numpy as np
import pytest
import torch

from manygp.data import Grid, GridPlan
from manygp.estimators import OILMM
from manygp.linalg import matvec
from manygp.variational import CellBatch, NaturalPosterior, TensorNormal
from manygp.variational.kronecker import NaturalKronecker

from . import worlds
from .registry import ESTIMATORS

# All that take counts and natural steps; OILMM knows Gaussian noise alone, and "quick" is "fast" for so many epochs.
OTHERS = ("paper", "quick")
NAMES = [
    name for name, (cls, settings) in ESTIMATORS.items() if cls is not OILMM and settings.get("preset") not in OTHERS
]
NOISES = ("poisson", "negative-binomial")
ZEROS, STEPS = 4, 12
# Times the bound, a negative number, at the start. Unguarded steps have led to 10⁶ and more.
NONSENSE = 3.0
# From a start at a bound of −10²⁷, which no initialisation leads to, steps of single processes may add up to too much.
TOO_FAR = ("g-mogp, shared kernels, matern", "poisson", 3.0)


def counts():
    """Six curves of counts with gaps: one from 0 to 10, one around 10⁵, one of zeros."""
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(size=(20, 1)), axis=0)
    f = np.array([0.0, 2.0, 5.0, 11.0, 0.0, 3.0]) + 1.2 * np.sin(5 * x + np.linspace(0, 2, 6))
    Y = rng.poisson(np.exp(f)).astype(float)
    Y[:, ZEROS] = 0.0
    Y[7, 3] = 1e5
    Y[rng.uniform(size=Y.shape) < 0.15] = np.nan
    return x, Y


@functools.cache
def fitted(name, noise):
    cls, settings = ESTIMATORS[name]
    free = {"standardize": True} if "standardize" in settings else {}
    return cls(**settings | free | {"likelihood": noise, "epochs": 3}).fit(*counts())


@torch.no_grad()
def scatter(model, rng, scale):
    """Put all parameters, and the means of q, somewhere else."""
    worlds.shake(model, rng, scale)
    for module in model.modules():
        if isinstance(module, NaturalPosterior):
            module.theta.add_(matvec(module.precision, scale * worlds.normal(rng, *module.theta.shape)))
        elif isinstance(module, NaturalKronecker | TensorNormal):
            module.mean.add_(scale * worlds.normal(rng, *module.mean.shape))
    return model


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", NAMES)
def test_a_fit_ends_no_lower_than_it_began(name, noise):
    model = fitted(name, noise)
    bounds = np.array([record.bound for record in model.history_.records])
    assert np.isfinite(bounds).all()
    # Draws of latent vectors move a bound on counts of 10⁵ by a factor of two or so in the first epochs.
    assert bounds[-1] >= NONSENSE * bounds[0]
    mean = model.predict(counts()[0])
    assert np.isfinite(mean).all()
    assert (mean >= 0.0).all()
    assert mean[:, ZEROS].max() < 1.0
    assert mean[:, 3].max() < 1e7


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_natural_steps_from_anywhere_do_not_fall(name, noise, scale, request):
    if (name, noise, scale) == TOO_FAR:
        request.applymarker(pytest.mark.xfail(reason="processes are held back one by one, not together"))
    estimator, table = fitted(name, noise), Grid(*counts())
    (whole,) = GridPlan(table, estimator.scaling_).epoch(np.random.default_rng(0))
    batch = CellBatch.from_arrays(whole, torch.float64, worlds.CPU)
    for rate in (1.0, 0.2):
        model = scatter(copy.deepcopy(estimator.model_), np.random.default_rng(1), scale)
        bounds = [model.elbo(batch, worlds.generator()).bound]
        for step in range(STEPS):
            model.natural_elbo(batch, worlds.generator(step), rate)
            bounds.append(model.elbo(batch, worlds.generator()).bound)
        bounds = torch.stack(bounds)
        assert bounds.isfinite().all()
        # A full step is the best for its own draws of latent vectors alone, and others follow.
        assert bounds.min() >= NONSENSE * bounds[0]
