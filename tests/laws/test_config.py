"""What every fitted model tells about itself: a configuration that makes it again."""

from dataclasses import FrozenInstanceError, fields, replace

import gpytorch
import pytest

import manygp
from manygp.estimators.tlvmogp_model import TLVMOGPConfig

from .conftest import observations


def test_a_configuration_leaves_nothing_open_and_makes_the_model_again(model):
    config = model.config_
    assert "auto" not in [getattr(config, field.name) for field in fields(config)]
    again = config.build().state_dict()
    assert {key: value.shape for key, value in again.items()} == {
        key: value.shape for key, value in model.model_.state_dict().items()
    }
    assert str(config).startswith(f"{type(config).__name__}(num_features=1, num_outputs=")


def test_configurations_are_saved_and_can_be_compared(model, tmp_path):
    model.save(tmp_path / "model")
    assert manygp.load(tmp_path / "model").config_ == model.config_
    with pytest.raises(FrozenInstanceError):
        model.config_.num_outputs = 3
    assert replace(model.config_, num_outputs=99) != model.config_


def test_modules_of_the_users_own_are_told_by_their_class(tmp_path):
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))
    model = manygp.TLVMOGP(kernel=kernel, num_inducing=5, latent_dim=1, epochs=1, progress=False).fit(*observations())
    assert "kernel='ScaleKernel'" in str(model.config_)
    model.save(tmp_path / "model")
    again = manygp.load(tmp_path / "model", kernel=kernel)
    assert again.config_.plain() == model.config_.plain()


@pytest.mark.parametrize(
    "wrong", [{"latent_dim": "auto"}, {"latent_dim": 2.5}, {"natural": 1}, {"num_inducing": True}, {"no_such_part": 1}]
)
def test_what_is_open_or_unknown_is_refused(wrong):
    chosen = {"num_features": 1, "num_outputs": 2, "latent_dim": 1, "num_inducing": 3, "natural": True}
    chosen |= {"spectral_bound": 0.1, "prior_mean": False, "num_neighbors": 0}
    assert TLVMOGPConfig.of(manygp.TLVMOGP(), chosen).num_blocks == 3
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TLVMOGPConfig.of(manygp.TLVMOGP(), chosen | wrong)


def test_a_fit_tells_how_it_came_about(model, tmp_path):
    """Seconds of every stage, a text with no open setting in it, and both survive a folder."""
    assert list(model.history_.stages) == ["survey", "start", "training", "corrections"]
    assert min(model.history_.stages.values()) >= 0.0
    text = model.summary()
    assert text.startswith(type(model).__name__)
    assert "auto" not in text
    assert max(map(len, text.splitlines())) <= 110
    model.save(tmp_path / "model")
    again = manygp.load(tmp_path / "model")
    assert again.summary() == text
    assert again.history_ == model.history_


def test_noise_and_lengthscales_are_in_the_users_units():
    """A table in other units has the same model in these."""
    X, Y = observations()
    settings = {"num_inducing": 8, "latent_dim": 1, "epochs": 2, "progress": False, "standardize": "global"}
    one, other = (manygp.TLVMOGP(**settings).fit(a * X, b * Y) for a, b in ((1.0, 1.0), (10.0, 100.0)))
    assert other.lengthscales_ == pytest.approx(10.0 * one.lengthscales_, rel=1e-6)
    assert other.noise_std_ == pytest.approx(100.0 * one.noise_std_, rel=1e-6)
    counts = manygp.TLVMOGP(likelihood="poisson", **settings | {"standardize": True}).fit(X, abs(Y).round())
    with pytest.raises(manygp.SettingError, match="poisson"):
        _ = counts.noise_std_


def test_corrections_can_be_switched_off_one_by_one(rng):
    X, Y = observations()
    settings = {"num_inducing": 8, "latent_dim": 1, "epochs": 2, "progress": False}

    def names(corrections):
        history = manygp.TLVMOGP(corrections=corrections, **settings).fit(X, Y).history_
        assert all(made.reason and made.effect for made in history.corrections)
        return tuple(made.name for made in history.corrections)

    assert names("auto") == ("noise", "row_effects")
    assert names(("noise",)) == ("noise",)
    assert names(()) == ()
    with pytest.raises(manygp.SettingError, match="corrections='all' is unknown"):
        names("all")
    with pytest.raises(manygp.SettingError, match="corrections='other' is unknown"):
        names(("other",))
