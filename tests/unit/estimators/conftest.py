"""A field of outputs that depend on where they are, and a model of some of them."""

import numpy as np
import pytest

import manygp

TINY = {"latent_dim": 2, "num_inducing": 20, "epochs": 4, "device": "cpu", "progress": False}
X = np.linspace(0.0, 1.0, 12)[:, None]


def places(rng, count):
    return rng.uniform(-1.0, 1.0, (count, 2)) * (100.0, 1.0) + (1000.0, 0.0)


def waves(S):
    """Functions of time that depend on two coordinates, one in the hundreds and one of order one."""
    return np.sin(4.0 * X) * (S[:, 0] - 1000.0) / 100.0 + np.cos(3.0 * X) * S[:, 1]


@pytest.fixture(scope="module")
def field():
    rng = np.random.default_rng(3)
    S = places(rng, 40)
    return S, waves(S) + 0.05 * rng.standard_normal((12, 40))


@pytest.fixture(scope="module")
def free(field):
    """A model whose latents are its own."""
    return manygp.TLVMOGP(**TINY | {"epochs": 30, "num_inducing": 40}, standardize="global").fit(X, field[1][:, :30])
