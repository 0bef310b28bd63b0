"""Samples of equal length behind the interface of PyPOTS: filled, those that were not in the fit too."""

import inspect

import numpy as np
import pytest

from manygp import TLVMOGP, DataError, IndGP, NotFittedError, SettingError
from manygp.windows import WindowImputer

SETTINGS = {"latent_dim": 2, "num_inducing": 20, "epochs": 20, "progress": False, "standardize": False, "device": "cpu"}


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    phase = rng.uniform(0.0, 2.0, (20, 1, 1))
    complete = np.sin(np.arange(24.0)[:, None] / 4 + phase) * np.array([1.0, 50.0]) + np.array([0.0, 300.0])
    complete += 0.05 * rng.normal(size=complete.shape) * np.array([1.0, 50.0])
    return complete, np.where(rng.random(complete.shape) < 0.3, np.nan, complete)


@pytest.fixture(scope="module")
def imputer(samples):
    imputer = WindowImputer(TLVMOGP(**SETTINGS))
    assert imputer.fit({"X": samples[1][:14]}, val_set={"X": samples[1][14:]}) is None
    return imputer


@pytest.mark.parametrize("part", [slice(0, 14), slice(14, 20)], ids=["of the fit", "new"])
def test_gaps_are_filled_and_values_kept(imputer, samples, part):
    complete, series = (values[part] for values in samples)
    before = series.copy()
    result = imputer.predict({"X": series})
    filled, std, gap = result["imputation"], result["std"], np.isnan(series)
    assert np.array_equal(series, before, equal_nan=True)
    assert np.array_equal(filled[~gap], series[~gap])
    assert not std[~gap].any()
    error = (filled - complete) / np.array([1.0, 50.0])
    assert np.sqrt(np.mean(error[gap] ** 2)) < 0.2
    assert 0.75 < np.mean(np.abs(filled - complete)[gap] < 1.645 * std[gap]) <= 1.0


def test_a_series_without_values_is_as_its_feature_usually_is(imputer, samples):
    series = samples[1][14:16].copy()
    series[0, :, 1] = np.nan
    result = imputer.predict({"X": series})
    assert result["imputation"][0, :, 1] == pytest.approx(np.nanmean(samples[1][:14, :, 1]))
    assert result["std"][0, :, 1] == pytest.approx(np.nanstd(samples[1][:14, :, 1]))


def test_files_are_read(imputer, samples, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "set.h5", "w") as file:
        file["X"] = samples[1][:14]
    assert np.array_equal(imputer.impute(str(tmp_path / "set.h5")), imputer.impute({"X": samples[1][:14]}))


def test_what_cannot_be_used_is_said_in_a_sentence(imputer, samples):
    with pytest.raises(NotFittedError, match="call fit first"):
        WindowImputer().impute({"X": samples[1]})
    with pytest.raises(DataError, match=r"shape \(20, 24\); expected \(samples, steps, features\)"):
        imputer.predict({"X": samples[1][:, :, 0]})
    with pytest.raises(DataError, match=r"samples of shape \(10, 2\)"):
        imputer.predict({"X": samples[1][:, :10]})
    with pytest.raises(DataError, match="neither was given"):
        imputer.predict({"Y": samples[1]})
    with pytest.raises(DataError, match="Feature 1 has no value"):
        WindowImputer().fit({"X": np.stack([samples[1][..., 0], np.full((20, 24), np.nan)], axis=2)})
    alone = WindowImputer(IndGP(progress=False))
    alone.fit({"X": samples[1][:3, :8]})
    with pytest.raises(SettingError, match="IndGP cannot fill samples that were not in the fit"):
        alone.impute({"X": samples[1][3:5, :8]})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of PyPOTS and of what it imports
def test_the_interface_is_that_of_pypots(imputer, samples):
    base = pytest.importorskip("pypots.imputation.base").BaseImputer
    from pypots.imputation import LOCF
    from pypots.nn.functional import calc_mse

    for name in ("fit", "predict", "impute"):
        theirs, ours = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (base, WindowImputer))
        assert ours == theirs
    complete, series = (values[14:] for values in samples)
    errors = []
    for model in (imputer, LOCF()):
        filled = model.impute({"X": series})
        errors.append(calc_mse(filled[..., :1], complete[..., :1], np.isnan(series)[..., :1]))
    assert errors[0] < errors[1]
