"""Whatever surrounds a fit changes nothing in it, to the bit: defaults and modes of torch, seeds, other threads."""

import copy
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import manygp

from .conftest import fitted, fresh, observations
from .registry import ESTIMATORS, Wide


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def beside_another_fit():
    """Another thread that draws from torch's global generator and fits without an end."""
    over = threading.Event()

    def work():
        X, Y = observations()
        while not over.is_set():
            torch.rand(10)
            quick("tlvmogp, paper preset").set_params(random_state=5).fit(X, Y)

    other = threading.Thread(target=work)
    other.start()
    try:
        yield
    finally:
        over.set()
        other.join()


@contextmanager
def elsewhere():
    """Another default dtype, other seeds, and no gradients."""
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    with default_dtype(torch.float64), torch.no_grad():
        yield


def quick(name):
    """An estimator of the registry that takes two epochs."""
    estimator, settings = ESTIMATORS[name]
    return estimator(**settings | ({"epochs": 2} if "epochs" in settings else {}))


def told(model, X):
    dist = model.predict_dist(X)
    return dist.mean, dist.std, dist.sample(2), *(value.numpy() for value in model.model_.state_dict().values())


def answers(estimator, X, Y):
    return told(estimator.fit(X, Y), X)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_surroundings_change_nothing(name):
    X, Y = observations()
    expected = told(fitted(name), X)
    for surroundings in (elsewhere(), torch.inference_mode()):
        with surroundings:
            found = answers(fresh(name), X, Y)
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True)), surroundings


def lists(X, Y):
    row, output = np.nonzero(~np.isnan(Y))
    return X[row], output, Y[row, output]


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_nor_of_lists_and_counts(likelihood):
    X, Y = observations()
    x, output, y = lists(X, Y)
    y = y if likelihood == "gaussian" else np.round(np.abs(y))

    def fitted():
        model = quick("tlvmogp").set_params(likelihood=likelihood, standardize=True)
        return model.fit_cells(x, output, y).predict_dist(X).mean

    expected = fitted()
    for surroundings in (elsewhere(), torch.inference_mode()):
        with surroundings:
            assert np.array_equal(fitted(), expected)


def test_nor_of_new_outputs():
    X, Y = observations()
    places = np.arange(10.0).reshape(5, 2)

    def fitted():
        model = quick("tlvmogp").set_params(standardize=True).fit(X, Y, output_coordinates=places)
        from_places = model.predict_new_outputs(X, output_coordinates=places[:2] + 0.5).mean
        known = model.adapt(X[:9], Y[:9, :2] + 1.0, output_coordinates=places[:2] + 0.5).predict(X)
        return np.hstack([from_places, known])

    expected = fitted()
    for surroundings in (elsewhere(), torch.inference_mode()):
        with surroundings:
            assert np.array_equal(fitted(), expected)


@pytest.mark.parametrize("name", ["tlvmogp", "tlvmogp, paper preset", "sv-lmc, paper preset", "oilmm", "ind-gp"])
def test_nor_do_other_threads(name):
    X, Y = observations()
    expected = answers(quick(name), X, Y)
    with beside_another_fit():
        found = answers(quick(name), X, Y)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_loaded_models_know_no_surroundings(tmp_path):
    X, Y = observations()
    model = quick("tlvmogp").set_params(embedding=Wide(3)).fit(X, Y)
    model.save(tmp_path / "model")
    expected = model.predict_dist(X).std
    for surroundings in (default_dtype(torch.float64), torch.no_grad(), torch.inference_mode()):
        with surroundings:
            loaded = manygp.load(tmp_path / "model", embedding=Wide(3))
            assert np.array_equal(loaded.predict_dist(X).std, expected)
            assert np.array_equal(copy.deepcopy(loaded).predict_dist(X).std, expected)
        assert np.array_equal(loaded.fit(X, Y).predict_dist(X).std.shape, expected.shape)
