"""The same seed gives the same numbers to the bit; another gives others; what the user has is left alone."""

import functools

import numpy as np
import pytest
import torch

from .conftest import NAMES, fitted, fresh, observations
from .registry import ESTIMATORS


def of_the_user(X, Y, model):
    """Data, settings and global state."""
    state = {"numpy": np.random.get_state()[1].copy(), "torch": torch.random.get_rng_state().numpy()}  # noqa: NPY002
    return state | {"dtype": torch.get_default_dtype(), "X": X.copy(), "Y": Y.copy(), "settings": model.get_params()}


@functools.cache
def fitted_again(name):
    """A second fit, and what the user had before and after it."""
    X, Y = observations()
    # Global generators must not matter.
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    model = fresh(name)
    before = of_the_user(X, Y, model)
    model.fit(X, Y, output_names=NAMES).predict_dist(X).sample(2)
    return model, before, of_the_user(X, Y, model)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_seeds_reproduce(name):
    X, _ = observations()
    (again, *_), first = fitted_again(name), fitted(name)
    state, other = first.model_.state_dict(), again.model_.state_dict()
    assert all(torch.equal(state[key], other[key]) for key in state)
    assert first.history_["bound"] == again.history_["bound"]
    assert np.array_equal(first.predict_dist(X).quantile(0.1), again.predict_dist(X).quantile(0.1))


@pytest.mark.parametrize("name", ["tlvmogp", "tlvmogp, paper preset"])
def test_another_seed_gives_other_numbers(name):
    X, Y = observations()
    other = fresh(name).set_params(random_state=1).fit(X, Y)
    assert not np.array_equal(other.predict(X), fitted(name).predict(X))


def test_generators_are_seeds_that_move_on():
    X, Y = observations()
    runs = [fresh("tlvmogp").set_params(random_state=np.random.RandomState(3)).fit(X, Y).predict(X) for _ in range(2)]
    assert np.array_equal(*runs)
    shared = np.random.default_rng(3)
    runs = [fresh("tlvmogp").set_params(random_state=shared).fit(X, Y).predict(X) for _ in range(2)]
    assert not np.array_equal(*runs)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_fitting_leaves_data_and_global_state_alone(name):
    _, before, after = fitted_again(name)
    np.testing.assert_equal(after, before)


def test_modules_of_the_user_are_copied(rng):
    from gpytorch.kernels import RBFKernel, ScaleKernel

    from .registry import Wide

    X, Y = observations()
    kernel, embedding = ScaleKernel(RBFKernel(ard_num_dims=4)), Wide(3)
    before = [parameter.clone() for parameter in (*kernel.parameters(), *embedding.parameters())]
    fresh("tlvmogp").set_params(kernel=kernel, embedding=embedding).fit(X, Y)
    after = (*kernel.parameters(), *embedding.parameters())
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(before, after, strict=True))
