"""Save → load gives predictions identical to the bit."""

import copy
import math
import pickle

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch

import manygp
from manygp import ModelFileError
from manygp.estimators import Estimator, persistence

from .conftest import NAMES, fitted, observations
from .damage import edit, manifest_of
from .registry import Wide

X_NEW = np.linspace(-0.2, 1.2, 7)[:, None]
TINY = {"latent_dim": 2, "num_inducing": 10, "epochs": 2, "standardize": "output", "device": "cpu", "progress": False}


def assert_same(loaded: Estimator, model: Estimator) -> None:
    """Everything a user can ask for is the same to the bit."""
    ours, theirs = loaded.predict_dist(X_NEW), model.predict_dist(X_NEW)
    assert np.array_equal(ours.mean, theirs.mean)
    assert np.array_equal(ours.variance, theirs.variance)
    assert np.array_equal(ours.quantile(0.1), theirs.quantile(0.1))
    assert np.array_equal(ours.sample(2), theirs.sample(2))
    assert np.array_equal(ours.log_prob(theirs.mean), theirs.log_prob(theirs.mean))
    assert np.array_equal(loaded.predict(X_NEW), model.predict(X_NEW))
    ours, theirs = loaded.model_.state_dict(), model.model_.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert loaded.output_names_ == model.output_names_
    assert [type(name) for name in loaded.output_names_] == [type(name) for name in model.output_names_]
    assert loaded.history_ == model.history_
    assert (loaded.n_features_in_, loaded.n_outputs_) == (model.n_features_in_, model.n_outputs_)


def reload(model, path, **modules):
    model.save(path)
    return manygp.load(path, **modules)


@pytest.fixture
def folder(tmp_path):
    """A saved model to be damaged."""
    fitted("tlvmogp").save(tmp_path / "model")
    return tmp_path / "model"


# -- the round trip ----------------------------------------------------------------------------------------------------


def test_loaded_models_are_the_saved_ones(model, tmp_path):
    loaded = reload(model, tmp_path / "model")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert_same(loaded, model)
    # And once more, from the loaded one, to the same files.
    loaded.save(tmp_path / "again")
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("model", "again")]
    assert files[0] == files[1]
    assert len(files[0]) == 2


def test_pickled_and_copied_models_are_the_saved_ones(model):
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert again.get_params() == model.get_params()
        assert_same(again, model)


@pytest.mark.parametrize("path", ["model", "a/b/c", "model.v1.2", "with space"])
def test_any_path_as_text_will_do(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert_same(reload(fitted("tlvmogp"), path), fitted("tlvmogp"))
    assert not list(tmp_path.rglob(".*"))


def test_modules_of_the_user_are_passed_to_load(tmp_path):
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RQKernel(ard_num_dims=4))
    model = manygp.TLVMOGP(**TINY, kernel=kernel, embedding=Wide(3)).fit(*observations(), output_names=NAMES)
    model.save(tmp_path / "model")
    for modules in ({}, {"kernel": kernel}, {"embedding": Wide(3)}):
        with pytest.raises(ModelFileError, match=r"a module of your own.*pass one like it, manygp.load\(.*=\.\.\.\)"):
            manygp.load(tmp_path / "model", **modules)
    loaded = manygp.load(tmp_path / "model", kernel=kernel, embedding=Wide(3))
    assert_same(loaded, model)


def test_modules_that_the_model_has_no_place_for_are_refused(folder):
    for name in ("kernel", "colonel"):
        with pytest.raises(ModelFileError, match=f"not fitted with a module of your own as {name}"):
            manygp.load(folder, **{name: gpytorch.kernels.RBFKernel()})


def test_a_module_unlike_the_saved_one_is_refused(tmp_path):
    model = manygp.TLVMOGP(**TINY, embedding=Wide(3)).fit(*observations())
    model.save(tmp_path / "model")
    with pytest.raises(manygp.ManyGPError):
        manygp.load(tmp_path / "model", embedding=Wide(5))
    with pytest.raises(manygp.ManyGPError):
        manygp.load(tmp_path / "model", embedding=gpytorch.kernels.RBFKernel())


def test_arrays_infinities_and_generators_among_the_settings(tmp_path):
    prior = np.arange(10.0).reshape(5, 2)
    model = manygp.TLVMOGP(
        **TINY,
        latent_prior_mean=prior,
        latent_prior_variance=np.float64(0.5),
        freeze_likelihood=math.inf,
        random_state=np.random.RandomState(3),
    ).fit(*observations(), output_names=NAMES)
    loaded = reload(model, tmp_path / "model")
    assert np.array_equal(loaded.latent_prior_mean, prior)
    assert loaded.freeze_likelihood == math.inf
    assert_same(loaded, model)


def test_tuples_of_sizes_survive(tmp_path):
    X, Y = observations()
    model = manygp.SGPRN(2, (2, np.int64(2)), epochs=2, device="cpu", progress=False).fit(X, Y[:, :4])
    loaded = reload(model, tmp_path / "model")
    assert loaded.output_shape == (2, 2)
    assert [type(size) for size in loaded.output_shape] == [int, int]
    assert_same(loaded, model)


@pytest.mark.parametrize(
    "changed",
    [{"kernel": "matern32"}, {"num_blocks": 5}, {"likelihood": "pooled-gaussian"}, {"preset": "paper"}],
    ids=str,
)
def test_a_model_is_saved_with_the_settings_of_its_fit(tmp_path, changed):
    X, Y = observations()
    model = manygp.TLVMOGP(**TINY, likelihood="auto").fit(X, Y)
    settings = model.get_params()
    model.set_params(**changed)
    loaded = reload(model, tmp_path / "model")
    assert loaded.get_params() == settings
    assert_same(loaded, model)
    # A fit that fails changes nothing, and the settings at hand stay those of the user.
    with pytest.raises(manygp.DataError):
        model.fit(X[:3], Y)
    assert model.get_params() == settings | changed
    assert reload(model, tmp_path / "again").get_params() == settings
    # The next fit counts.
    model.set_params(preset="fast").fit(X, Y)
    assert reload(model, tmp_path / "model").get_params() == model.get_params()


def test_samples_of_predictions_are_those_set_last(tmp_path):
    model = copy.copy(fitted("tlvmogp")).set_params(num_samples=3)
    assert_same(reload(model, tmp_path / "model"), model)


def test_the_exposure_of_a_fit_survives(tmp_path):
    X, Y = observations()
    counts = np.round(np.abs(Y))
    model = manygp.TLVMOGP(**TINY | {"standardize": True}, likelihood="poisson").fit(X, counts, exposure="auto")
    loaded = reload(model, tmp_path / "model")
    assert np.array_equal(loaded.exposure_, model.exposure_)
    assert not hasattr(reload(fitted("tlvmogp"), tmp_path / "plain"), "exposure_")


def test_a_loaded_model_is_on_its_device(folder, monkeypatch):
    monkeypatch.setattr(persistence, "resolve_device", lambda device: torch.device("meta"))
    assert {value.device.type for value in manygp.load(folder).model_.state_dict().values()} == {"meta"}


def test_a_device_that_is_not_here(folder):
    edit(folder, settings=manifest_of(folder)["settings"] | {"device": "mps"})
    with pytest.warns(UserWarning, match="device='mps', which cannot be used here: it is loaded on the CPU") as caught:
        loaded = manygp.load(folder)
    assert caught[0].filename == __file__
    assert loaded.device == "mps"
    assert_same(loaded, fitted("tlvmogp"))


def test_names_of_features_and_outputs_survive(tmp_path):
    X, Y = observations()
    frame = pd.DataFrame(X, columns=["day"])
    model = manygp.TLVMOGP(**TINY).fit(frame, pd.DataFrame(Y, columns=["ä", "b c", "3", "d", "e"]))
    loaded = reload(model, tmp_path / "model")
    assert loaded.feature_names_in_.tolist() == ["day"]
    assert np.array_equal(loaded.predict(frame, outputs=["3"]), model.predict(frame, outputs=[2]))
    with pytest.raises(manygp.DataError, match="feature names"):
        loaded.predict(frame.rename(columns={"day": "night"}))


def test_numpy_names_and_one_dimensional_targets_survive(tmp_path):
    X, Y = observations()
    model = manygp.TLVMOGP(**TINY).fit(X, Y, output_names=np.arange(5) * 10)
    loaded = reload(model, tmp_path / "numbers")
    assert np.array_equal(loaded.predict(X, outputs=[20]), model.predict(X, outputs=[20]))
    np.testing.assert_allclose(loaded.predict(X, outputs=[20]), model.predict(X)[:, [2]], rtol=1e-9)
    flat = manygp.TLVMOGP(**TINY).fit(X, np.nan_to_num(Y[:, 0]))
    assert np.array_equal(reload(flat, tmp_path / "flat").predict(X), flat.predict(X))
    assert flat.predict(X).shape == (24,)


def test_a_loaded_model_can_be_fitted_again(tmp_path):
    X, Y = observations()
    model = fitted("tlvmogp")
    loaded = reload(model, tmp_path / "model")
    assert np.array_equal(loaded.fit(X, Y, output_names=NAMES).predict(X), model.predict(X))


def test_loading_leaves_the_global_generator_alone(folder):
    before = torch.random.get_rng_state()
    manygp.load(folder)
    assert torch.equal(torch.random.get_rng_state(), before)
