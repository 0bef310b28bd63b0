"""What a fit says of itself, and where it is silent."""

import warnings

import numpy as np
import pandas as pd
import pytest
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel

import manygp

X = np.linspace(0.0, 1.0, 40)[:, None]
QUIET = {"progress": False, "device": "cpu"}
TINY = {"epochs": 1, "num_inducing": 8, "latent_dim": 1, **QUIET}


def curves(rng):
    return np.sin(6.0 * X + np.linspace(0.0, 1.0, 4)) + 0.1 * rng.standard_normal((40, 4))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda rng: (rng.random((40, 4)) < 0.5).astype(float), "zeros and ones.*likelihood='bernoulli'"),
        (lambda rng: rng.poisson(2.0, (40, 4)), "look like counts.*likelihood='poisson'"),
    ],
    ids=["labels", "counts"],
)
def test_labels_and_counts_as_measurements(rng, draw, message):
    Y = draw(rng)
    with pytest.warns(UserWarning, match=message):
        manygp.TLVMOGP(**TINY).fit(X, Y)


def test_other_whole_numbers_are_measurements(rng):
    for Y in (np.round(20.0 + curves(rng)), np.round(1000.0 + 50.0 * curves(rng)), np.round(10.0 * curves(rng))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            manygp.TLVMOGP(**TINY).fit(X, Y)


def test_nothing_learnt(rng):
    model = manygp.TLVMOGP(**QUIET | {"num_inducing": 10, "latent_dim": 1})
    with pytest.warns(UserWarning, match="explains next to nothing of the observations beyond the means"):
        model.fit(X, 5.0 + rng.standard_normal((40, 4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, curves(rng))


def test_worse_than_independent_gps(rng):
    """A single inducing point cannot follow what each output tells by itself."""
    x, output = rng.uniform(0.0, 1.0, (240, 1)), np.arange(240) % 4
    y = np.sin(40.0 * x[:, 0] + output / 3.0) + 0.1 * rng.standard_normal(240)
    model = manygp.TLVMOGP(**QUIET | {"num_inducing": 1, "latent_dim": 1})
    with pytest.warns(UserWarning, match=r"leaves \d+% of the variance .* independent GPs leave \d+% of"):
        model.fit_cells(x, output, y)


@pytest.mark.parametrize("model", [manygp.TLVMOGP, manygp.SVLMC, manygp.OILMM])
def test_periodic_kernels_are_pointed_at(rng, model):
    kernel = ScaleKernel(PeriodicKernel(active_dims=[0]) * RBFKernel())
    sizes = {"num_inducing": 8, "latent_dim": 1} if model is manygp.TLVMOGP else {"num_latents": 1}
    with pytest.warns(UserWarning, match="kernel is periodic.*sine and cosine of the inputs"):
        model(kernel=kernel, epochs=1, **sizes, **QUIET).fit(X, curves(rng))


def test_row_numbers_beside_dates(rng):
    frame = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=40), "row": np.arange(40)})
    with pytest.warns(UserWarning, match="'row' only counts the rows beside the dates of 'day'"):
        manygp.TLVMOGP(**TINY).fit(frame, curves(rng))
