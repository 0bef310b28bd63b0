"""Save → load gives predictions identical to the bit; broken folders and failed saves give one sentence, no harm."""

import copy
import json
import math

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import manygp
from manygp import ModelFileError
from manygp.estimators import Estimator, persistence

from .conftest import NAMES, fitted, fresh, observations
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
    for name in ("manygp.json", "tensors.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


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
    settings = json.loads((folder / "manygp.json").read_text())["settings"]
    edit(folder, settings=settings | {"device": "mps"})
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
    assert np.array_equal(loaded.predict(X, outputs=[20]), model.predict(X)[:, [2]])
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


# -- folders that cannot be loaded -------------------------------------------------------------------------------------


def edit(folder, **changes):
    config = json.loads((folder / "manygp.json").read_text())
    (folder / "manygp.json").write_text(json.dumps(config | changes))


def refused(folder, match):
    with pytest.raises(ModelFileError, match=match) as caught:
        manygp.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_folder(tmp_path):
    refused(tmp_path / "nowhere", "is not a folder")
    (tmp_path / "file").write_text("text")
    refused(tmp_path / "file", "is not a folder")


def test_a_foreign_folder(tmp_path):
    refused(tmp_path, "is not a ManyGP model")
    (tmp_path / "manygp.json").write_text('{"name": "something else"}')
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", "\x00\x01", '{"format": 1', '"format"'])
def test_a_corrupt_description(folder, text):
    (folder / "manygp.json").write_text(text)
    refused(folder, "cannot be read")


def test_a_description_that_is_not_text(folder):
    (folder / "manygp.json").write_bytes(b"\xff\xfe\x00")
    refused(folder, "cannot be read")


@pytest.mark.parametrize("version", [persistence.FORMAT + 1, 99, "2", None])
def test_a_newer_format(folder, version):
    edit(folder, format=version, manygp="9.9")
    refused(folder, "9.9.*upgrade ManyGP")


@pytest.mark.parametrize("name", ["Oracle", None, 3, ["TLVMOGP"]])
def test_an_unknown_kind_of_model(folder, name):
    edit(folder, estimator=name)
    refused(folder, "unknown kind.*known are TLVMOGP")


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": None},
        {"settings": {"no_such_setting": 1}},
        {"settings": {"kernel": {"tensor": "nowhere"}}},
        {"sizes": {}},
        {"sizes": {"num_features": 1, "num_outputs": 6, "latent_dim": 2, "num_inducing": 10}},
        {"sizes": {"num_features": -1, "num_outputs": 5, "latent_dim": 2, "num_inducing": 10}},
        {"history": None},
        {"history": {"records": [{}], "stop_reason": "epochs"}},
        {"output_names": None},
        {"output_names": "abc"},
        {"seed": "none"},
        {"seed": math.inf},
    ],
    ids=str,
)
def test_a_description_that_does_not_fit(folder, changes):
    edit(folder, **changes)
    refused(folder, "damaged")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("settings", "kernel", "cosine"),
        ("settings", "num_samples", -1),
        ("settings", "epochs", "often"),
        ("settings", "standardize", None),
        ("sizes", "linear_share", "some"),
    ],
)
def test_a_spoilt_setting(folder, part, name, value):
    changed = json.loads((folder / "manygp.json").read_text())[part] | {name: value}
    edit(folder, **{part: changed})
    refused(folder, f"damaged.*{name}=" if part == "settings" else "damaged")


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    model = copy.copy(fitted("tlvmogp"))
    model.num_samples = -1
    with pytest.raises(manygp.SettingError, match="num_samples=-1"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["settings", "sizes", "seed", "flat", "output_names", "feature_names", "history"])
def test_a_description_with_a_part_missing(folder, key):
    config = json.loads((folder / "manygp.json").read_text())
    del config[key]
    (folder / "manygp.json").write_text(json.dumps(config))
    refused(folder, "damaged")


@pytest.mark.parametrize("size", [0, 5, 200, -1])
def test_half_written_numbers(folder, size):
    content = (folder / "tensors.safetensors").read_bytes()
    (folder / "tensors.safetensors").write_bytes(content[:size])
    refused(folder, "damaged")


def test_numbers_that_are_missing(folder):
    tensors = load_file(folder / "tensors.safetensors")
    (folder / "tensors.safetensors").unlink()
    refused(folder, "damaged")
    for key in ("model.gp.Z", "scaling.y_scale"):
        save_file({name: value for name, value in tensors.items() if name != key}, folder / "tensors.safetensors")
        refused(folder, "damaged")


# -- saving ------------------------------------------------------------------------------------------------------------


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def full_disk(*arguments, **keywords):
    raise OSError(28, "No space left on device")


def test_saving_before_fitting(tmp_path):
    with pytest.raises(manygp.NotFittedError):
        fresh("tlvmogp").save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_new_model_replaces_the_old_one(folder):
    other = fitted("tlvmogp, paper preset")
    other.save(folder)
    assert_same(manygp.load(folder), other)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("target", ["numbers", "description", "rename"])
def test_a_full_disk_leaves_the_old_model(folder, monkeypatch, target):
    from pathlib import Path

    before = contents(folder)
    if target == "numbers":
        monkeypatch.setattr(persistence, "save_file", full_disk)
    else:
        monkeypatch.setattr(Path, "write_text" if target == "description" else "rename", full_disk)
    with pytest.raises(
        ModelFileError, match=r"could not be written.*No space left on device.*nothing there was changed"
    ):
        fitted("tlvmogp, paper preset").save(folder)
    monkeypatch.undo()
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert_same(manygp.load(folder), fitted("tlvmogp"))


def test_the_old_model_comes_back_when_the_new_one_cannot_take_its_place(folder, monkeypatch):
    from pathlib import Path

    before, rename = contents(folder), Path.rename

    def once(path, target):
        if path.suffix == ".new":
            full_disk()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(ModelFileError, match="nothing there was changed"):
        fitted("tlvmogp, paper preset").save(folder)
    monkeypatch.undo()
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_full_disk_leaves_no_trace_of_a_first_save(tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "save_file", full_disk)
    with pytest.raises(ModelFileError):
        fitted("tlvmogp").save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(ModelFileError, match="could not be written"):
        fitted("tlvmogp").save(tmp_path / "file" / "model")


def test_ctrl_c_while_saving_leaves_the_old_model(folder, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    before = contents(folder)
    monkeypatch.setattr(persistence, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted("tlvmogp, paper preset").save(folder)
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_folders_of_others_are_not_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "file").write_text("text")
    for name in ("thesis", "file"):
        with pytest.raises(ModelFileError, match="exists and is not a ManyGP model"):
            fitted("tlvmogp").save(tmp_path / name)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    fitted("tlvmogp").save(tmp_path / "empty")
    assert_same(manygp.load(tmp_path / "empty"), fitted("tlvmogp"))
