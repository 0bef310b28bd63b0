"""The same seed gives the same numbers to the bit; another gives others; what the user has is left alone."""

import numpy as np
import pytest
import torch

from .conftest import NAMES, fitted, fresh, observations
from .registry import ESTIMATORS


@pytest.mark.parametrize("name", ESTIMATORS)
def test_seeds_reproduce(name):
    X, Y = observations()
    # Global generators must not matter.
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    again = fresh(name).fit(X, Y, output_names=NAMES)
    first = fitted(name)
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
    X, Y = observations()
    kept = X.copy(), Y.copy()
    torch_state, dtype = torch.random.get_rng_state(), torch.get_default_dtype()
    numpy_state = np.random.get_state()[1]  # noqa: NPY002
    model = fresh(name)
    settings = model.get_params()
    model.fit(X, Y).predict_dist(X).sample(2)
    assert np.array_equal(X, kept[0])
    assert np.array_equal(Y, kept[1], equal_nan=True)
    assert model.get_params() == settings
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.get_default_dtype() == dtype


def test_modules_of_the_user_are_copied(rng):
    from gpytorch.kernels import RBFKernel, ScaleKernel

    from .registry import Wide

    X, Y = observations()
    kernel, embedding = ScaleKernel(RBFKernel(ard_num_dims=4)), Wide(3)
    before = [parameter.clone() for parameter in (*kernel.parameters(), *embedding.parameters())]
    fresh("tlvmogp").set_params(kernel=kernel, embedding=embedding).fit(X, Y)
    after = (*kernel.parameters(), *embedding.parameters())
    assert all(torch.equal(a, b) and a.dtype == torch.float32 for a, b in zip(before, after, strict=True))
