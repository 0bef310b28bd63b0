"""Settings are checked when a fit begins: each error names what came and what to use instead."""

import gpytorch
import numpy as np
import pytest
import torch
from torch import nn

from manygp import GSLVMOGP, TLVMOGP, NotFittedError, SettingError
from manygp.data import Grid, Scaling
from manygp.estimators import ESTIMATORS
from manygp.estimators.settings import resolve_device, resolve_dtype, resolve_seed
from manygp.likelihoods import make_likelihood

X = np.linspace(0, 1, 6)[:, None]
Y = np.column_stack([np.sin(5 * X[:, 0]), np.cos(5 * X[:, 0]), X[:, 0]])
TINY = {"latent_dim": 2, "num_inducing": 5, "epochs": 1, "standardize": "output", "device": "cpu", "progress": False}


def refused(message, **settings):
    """Fitting raises one sentence that matches, and leaves the estimator unfitted."""
    model = TLVMOGP(**(TINY | settings))
    with pytest.raises(SettingError, match=message) as caught:
        model.fit(X, Y)
    assert "\n" not in str(caught.value)
    assert not hasattr(model, "model_")
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        (
            "kernel",
            "rbff",
            "'rbf', 'matern12', 'matern32', 'matern52', with seasons as in .* or a GPyTorch kernel",
        ),
        ("kernel", None, "'rbf'"),
        ("kernel", ["rbf"], "'rbf'"),
        ("likelihood", "poison", "'gaussian'"),
        ("embedding", "resnet", r"'residual', 'identity', 'mlp' or a torch\.nn\.Module"),
        ("embedding", 3, "'residual'"),
        ("preset", "slow", "'fast', 'quick', 'paper'"),
        ("bound", "loose", "'standard'"),
        ("latent_posterior", "spike", "'full', 'diagonal', 'point'"),
        ("standardize", "columns", "True, False, 'output', 'global', 'completed'"),
        ("standardize", 1, "True, False"),
        ("progress", "loud", "True, False, 'auto'"),
        ("dtype", "float16", "'float64' or 'float32'"),
    ],
)
def test_unknown_names_are_told_what_exists(name, value, known):
    refused(f"{name}=.* is unknown: use .*{known}", **{name: value})


@pytest.mark.parametrize(
    "name", ["latent_dim", "num_inducing", "num_blocks", "epochs", "batch_inputs", "batch_outputs", "num_samples"]
)
@pytest.mark.parametrize("value", [0, -3, 2.5, True, "many", [3], float("nan")], ids=str)
def test_silly_sizes(name, value):
    refused(f"{name}=.* is no valid size: use a whole number of at least 1", **{name: value})


@pytest.mark.parametrize("name", ["latent_dim", "num_inducing", "num_blocks", "epochs", "num_samples"])
def test_sizes_that_must_be_given(name):
    refused(f"{name}=None is no valid size", **{name: None})


@pytest.mark.parametrize("name", ["spectral_bound", "latent_prior_variance", "learning_rate", "max_grad_norm"])
@pytest.mark.parametrize("value", [0.0, -0.1, float("inf"), float("nan"), "big", True, [0.1]], ids=str)
def test_numbers_out_of_range(name, value):
    refused(f"{name}=.* is out of range: use a positive number", **{name: value})


@pytest.mark.parametrize("value", [-1, float("nan"), "x", None, True])
def test_freezing_for_no_number_of_epochs(value):
    refused("freeze_likelihood=.* is out of range: use a number of epochs of at least 0", freeze_likelihood=value)


@pytest.mark.parametrize("value", [-1, 2**63, 1.5, "x", True])
def test_seeds_that_are_none(value):
    refused("random_state=.* is no seed: use a whole number", random_state=value)


@pytest.mark.parametrize("value", ["gpu", "cuda:99", "meta", 1.5, None])
def test_devices_that_are_not_there(value):
    refused("device=.* cannot be used here: choose 'auto'", device=value)


def test_more_inducing_points_than_cells():
    for preset in ("fast", "paper"):
        refused("num_inducing=19 exceeds the 18 observed cells: use fewer or 'auto'", num_inducing=19, preset=preset)
    Y_gaps = np.where(np.arange(18).reshape(6, 3) < 4, np.nan, Y)
    with pytest.raises(SettingError, match="num_inducing=15 exceeds the 14 observed cells"):
        TLVMOGP(**(TINY | {"num_inducing": 15})).fit(X, Y_gaps)


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        (np.zeros((4, 2)), "4 rows, but there are 3 outputs"),
        (np.zeros(3), "1 columns but latent_dim is 2: they must agree"),
        (np.zeros((3, 2, 1)), r"shape \(3, 2, 1\); expected \(outputs, columns\)"),
        (np.full((3, 2), np.nan), "every output needs finite numbers"),
        (np.full((3, 2), np.inf), "every output needs finite numbers"),
        (np.zeros((3, 5)), "5 columns but latent_dim is 2: they must agree"),
        ([["a", "b"]] * 3, "holds text"),
        ([[1, 2], [3]], "give rows of equal length"),
    ],
    ids=["rows", "vector", "cube", "NaN", "infinity", "columns", "text", "ragged"],
)
@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_prior_means_of_the_wrong_shape(mean, message, preset):
    refused(f"latent_prior_mean .*{message}", latent_prior_mean=mean, preset=preset)


def test_completed_columns_are_for_the_fast_preset():
    refused("standardize='completed' goes with preset='fast'", standardize="completed", preset="paper")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_only_the_published_start_of_tlvmogp_holds_the_noise(name):
    for preset in ("fast", "paper"):
        model = ESTIMATORS[name](preset=preset, freeze_likelihood="auto")
        assert model._training_settings(11).frozen_epochs == (5 if (name, preset) == ("tlvmogp", "paper") else 0)


def test_modules_that_do_not_fit():
    refused("embedding Linear cannot take rows of 3 values", embedding=nn.Linear(8, 2))
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=9))
    refused("kernel ScaleKernel cannot take embeddings of 3 dimensions", kernel=kernel)


def test_names_are_checked_before_the_data_are_looked_at(monkeypatch):
    """Choosing sizes from the data may take minutes."""

    def slow(*arguments):
        raise AssertionError("the data were looked at first")

    monkeypatch.setattr("manygp.estimators.trained.Survey", slow)
    for name in ("kernel", "embedding", "likelihood", "preset", "bound", "latent_posterior", "dtype", "device"):
        refused(f"{name}='nothing like it'", **{name: "nothing like it"})


@pytest.mark.parametrize(
    "settings",
    [
        {"num_inducing": np.int64(4), "spectral_bound": np.float64(0.2), "num_samples": np.int8(100)},
        {"spectral_bound": None},
        {"spectral_bound": 1},
        {"batch_inputs": None, "batch_outputs": None},
        {"batch_inputs": 1000, "batch_outputs": 1000},
        {"batch_inputs": 1, "batch_outputs": 1},
        {"freeze_likelihood": float("inf")},
        {"max_grad_norm": 0.5},
        {"dtype": torch.float32},
        {"device": torch.device("cpu")},
        {"random_state": None},
        {"latent_prior_mean": [[0, 1], [1, 0], [2, 2]]},
        {"latent_dim": 9},
        {"num_inducing": 18},
        {"num_blocks": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_everything_else_is_allowed(settings, preset):
    model = TLVMOGP(**(TINY | {"preset": preset} | settings)).fit(X, Y)
    assert np.isfinite(model.predict(X)).all()


def test_resolving():
    assert resolve_dtype("float32") == resolve_dtype(torch.float32) == torch.float32
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == torch.device("cpu")
    assert resolve_device("auto").type in ("cpu", "cuda")
    for device in ("mps", torch.device("mps")):
        with pytest.raises(SettingError, match=r"no double precision.*choose 'auto' or 'cpu'"):
            resolve_device(device)
    assert resolve_seed(7) == resolve_seed(np.int64(7)) == 7
    assert resolve_seed(None) != resolve_seed(None)
    assert resolve_seed(np.random.default_rng(1)) == resolve_seed(np.random.default_rng(1))


def test_densities_of_counts_are_part_of_the_budget(rng, monkeypatch):
    """Otherwise a cheap model of many counts would run for hours."""
    table = Grid(np.arange(3000.0)[:, None], rng.poisson(2.0, (3000, 50)).astype(float))
    monkeypatch.setattr(GSLVMOGP, "_work", lambda self, model, cells: 1e5 * cells)
    most = []
    for name in ("gaussian", "poisson"):
        estimator, model = GSLVMOGP(), nn.Module()
        model.likelihood = make_likelihood(name, 50)
        most.append(estimator._schedule(estimator._plan(table, Scaling.fit(table)), model).max_epochs)
    assert most[1] == pytest.approx(most[0] / 1.5, abs=1)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_a_fit_finds_is_not_there_before_it(name):
    found = [key for key in dir(ESTIMATORS[name]) if key.endswith("_") and not key.startswith("_")]
    for key in found:
        if isinstance(getattr(ESTIMATORS[name], key), property):
            with pytest.raises(NotFittedError, match="has not been fitted: call fit"):
                getattr(ESTIMATORS[name](), key)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_whether_the_likelihood_is_frozen_is_left_to_the_preset(name):
    assert ESTIMATORS[name]().freeze_likelihood == "auto"


def test_a_fit_leaves_torch_generators_as_they_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded all devices"))
    before = torch.random.get_rng_state()
    TLVMOGP(**TINY).fit(X, Y)
    assert torch.equal(torch.random.get_rng_state(), before)
