"""Calls that once ended in errors of others, or in answers that are no numbers."""

import numpy as np
import pytest
from gpytorch.kernels import LinearKernel, ScaleKernel

import manygp
from manygp.data.sources import read_source
from manygp.errors import DataError, SettingError

X = np.linspace(0.0, 1.0, 12)[:, None]
Y = np.sin(5.0 * X + np.arange(3))
QUIET = {"device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def fitted():
    return manygp.IndGP(**QUIET).fit(X, Y)


def test_masked_complex_values_keep_their_imaginary_part():
    with pytest.raises(DataError, match="Complex data not supported"):
        manygp.IndGP(**QUIET).fit(X, np.ma.array(Y + 1j, mask=Y > 0.9))


def test_no_levels_are_no_quantiles(fitted):
    with pytest.raises(SettingError, match=r"quantile\(\[\]\): give one or more levels"):
        fitted.predict_dist(X).quantile([])


def test_values_too_far_to_square_are_not_scored(fitted):
    with pytest.raises(DataError, match="too far to square"):
        fitted.evaluate(X, 1e200 * Y)


def test_a_kernel_of_low_rank():
    mean, std = manygp.IndGP(kernel=ScaleKernel(LinearKernel()), **QUIET).fit(X, Y).predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_a_prior_without_any_width():
    with pytest.raises(SettingError, match=r"latent_prior_variance=1e-300 is out of range: .*; use 1e-12 or more"):
        manygp.TLVMOGP(latent_dim=1, num_inducing=5, epochs=1, latent_prior_variance=1e-300, **QUIET).fit(X, Y)


@pytest.mark.parametrize("setting", ["likelihood", "device", "freeze_likelihood"])
def test_an_array_is_no_choice(setting):
    with pytest.raises(SettingError, match=rf"{setting}=array\(\[1., 2.\]\)"):
        manygp.TLVMOGP(**QUIET | {setting: np.array([1.0, 2.0])}).fit(X, Y)


def test_inputs_of_three_dimensions_in_a_file(tmp_path):
    np.savez(tmp_path / "cube.npz", X=np.zeros((2, 2, 2)), Y=np.zeros((2, 3)))
    with pytest.raises(DataError, match=r"shape \(2, 2, 2\); expected \(inputs, features\)"):
        read_source(tmp_path / "cube.npz", part="train").table()
