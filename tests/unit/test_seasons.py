"""Kernels with seasons in the user's units: what they are, how they are read, and what models make of them."""

import numpy as np
import pandas as pd
import pytest
import torch

import manygp
from manygp import OILMM, SVLMC, TLVMOGP, IndGP, SettingError
from manygp.data import Scaling, as_table
from manygp.data.seasons import find_seasons, with_circles
from manygp.kernels import cross_covariance, is_fused, make_kernel, rescale_kernel
from manygp.kernels.composed import Part, Season, parts_of, seasons_of

from ..tolerances import assert_close

QUIET = {"device": "cpu", "progress": False}


def rbf(s, lengthscale):
    return np.exp(-0.5 * np.square(s / lengthscale))


def periodic(s, period, lengthscale):
    return np.exp(-2.0 * np.square(np.sin(np.pi * s / period) / lengthscale))


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("rbf * periodic(5)", lambda s: 3.0 * rbf(s, 2.0) * periodic(s, 5.0, 0.7)),
        ("periodic(5) * rbf", lambda s: 3.0 * rbf(s, 2.0) * periodic(s, 5.0, 0.7)),
        ("rbf + periodic(5)", lambda s: 1.5 * rbf(s, 2.0) + 1.5 * periodic(s, 5.0, 0.7)),
        (
            "rbf * periodic(5) + periodic(5) * periodic(2) + rbf",
            lambda s: rbf(s, 2.0) * periodic(s, 5.0, 0.7) + periodic(s, 5.0, 0.7) * periodic(s, 2.0, 0.7) + rbf(s, 2.0),
        ),
    ],
)
def test_circles_make_periodic_kernels(rng, text, formula):
    x = rng.uniform(0.0, 20.0, (9, 1))
    seasons = np.array([[0.0, season.period] for season in seasons_of(text)])
    points = torch.as_tensor(with_circles(x, seasons))
    kernel = make_kernel(text, points.shape[1])
    rescale_kernel(kernel, torch.tensor([2.0] + [0.7] * 2 * len(seasons), dtype=torch.float64), 3.0)
    assert is_fused(kernel) == ("+" not in text)
    with torch.no_grad():
        assert_close(cross_covariance(kernel, points, points), formula(x - x.T))


def test_latent_vectors_belong_to_every_part(rng):
    """A season of one output is not that of another."""
    kernel = make_kernel("rbf + periodic(5)", 5, num_latents=2, num_inputs=3)
    assert [part.active_dims.tolist() for part in kernel.kernels] == [[0, 3, 4], [1, 2, 3, 4]]


def test_what_is_written_is_read():
    assert parts_of("rbf*periodic(24)+periodic('week', column='t') + matern32") == (
        Part("rbf", (Season(24),)),
        Part(None, (Season("week", "t"),)),
        Part("matern32", ()),
    )
    assert seasons_of("rbf * periodic(7) + periodic(7) * periodic(30.5)") == (Season(7), Season(30.5))
    assert seasons_of(None) == ()


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        ("rbf * periodic(", "cannot be read"),
        ("rbf * periodic()", "neither a name nor"),
        ("rbf * periodic(__import__('os'))", "neither a name nor"),
        ("rbf - periodic(3)", "neither a name nor"),
        ("rbf * periodic(0)", "the period 0"),
        ("rbf * periodic(float('inf'))", "neither a name nor"),
        ("rbf * matern32 * periodic(3)", "are one kernel"),
        ("linear * periodic(3)", "'linear' is unknown"),
        ("periodic(3)", "only repeats itself"),
        ("rbf * periodic('moon')", "no period"),
        ("rbf * periodic('day')", "holds none"),
        ("rbf * periodic(3, 'depth')", "names no input"),
        ("rbf * periodic(3, 4)", "names no input"),
    ],
)
def test_what_makes_no_sense_is_refused(kernel, text):
    X = pd.DataFrame({"t": np.arange(8.0)})
    with pytest.raises(SettingError, match=text):
        IndGP(kernel=kernel, **QUIET).fit(X, np.arange(8.0) % 3.0)


def test_the_input_has_to_be_clear():
    table = as_table(np.zeros((3, 2)), np.arange(3.0))
    with pytest.raises(SettingError, match="say which"):
        find_seasons([(3.0, None)], table)
    np.testing.assert_array_equal(find_seasons([(3.0, 1)], table), [[1.0, 3.0]])
    times = pd.DataFrame({"depth": [1.0, 2.0], "time": pd.to_datetime(["2024-01-01", "2024-01-02"])})
    dated = as_table(times, np.arange(2.0))
    np.testing.assert_array_equal(find_seasons([("week", None), (2.0, "depth")], dated), [[1.0, 7.0], [0.0, 2.0]])


def test_scaled_inputs_come_back(rng):
    X, seasons = rng.uniform(0.0, 9.0, (6, 2)), np.array([[1.0, 3.0]])
    table = as_table(with_circles(X, seasons), rng.standard_normal(6))
    plain = Scaling.fit(table)
    scaling = Scaling.from_arrays(plain.arrays() | {"seasons": seasons})
    np.testing.assert_array_equal(scaling.scale_x(X), plain.scale_x(table.X))
    np.testing.assert_allclose(scaling.unscale_x(scaling.scale_x(X)), X)
    assert scaling.num_features == 2


@pytest.fixture(scope="module")
def days():
    """Six hourly series that mix shapes of the day and a drift; ten days, of which one is lost and one comes after."""
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 240.0, 120)[:, None]
    a = 2.0 * np.pi * t / 24.0
    F = np.column_stack([np.sin(a), np.cos(a) + 0.5 * np.sin(2.0 * a), np.sin(t / 50.0)]) @ rng.standard_normal((3, 5))
    Y = F + 0.1 * rng.standard_normal(F.shape)
    Y[rng.random(Y.shape) < 0.2] = np.nan
    Y[50:62] = Y[-12:] = np.nan
    return t, Y, F


def error(model, X, F):
    mean = model.predict(X)
    return np.square(mean - F)[50:62].mean(), np.square(mean - F)[-12:].mean()


SEASONAL = {"kernel": "rbf + periodic(24)", **QUIET}
MODELS = {
    "ind-gp": lambda: IndGP(**SEASONAL),
    "oilmm": lambda: OILMM(num_latents=3, epochs=15, **SEASONAL),
    "sv-lmc": lambda: SVLMC(num_latents=3, num_inducing=40, epochs=40, **SEASONAL),
    "t-lvmogp": lambda: TLVMOGP(latent_dim=2, num_inducing=50, num_neighbors=0, epochs=30, **SEASONAL),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_follow_a_season(days, name, tmp_path):
    """Where a plain kernel has lost the function: errors of 0.8 and 1.5 on a day that was lost and a day ahead."""
    t, Y, F = days
    model = MODELS[name]().fit(t, Y)
    lost, ahead = error(model, t, F)
    assert lost < 0.05
    assert ahead < 0.2
    assert model.n_features_in_ == 1
    model.save(tmp_path / name)
    np.testing.assert_array_equal(manygp.load(tmp_path / name).predict_dist(t).std, model.predict_dist(t).std)


def test_a_product_is_a_kernel_of_sine_and_cosine(days):
    t, Y, _ = days
    X = with_circles(t, np.array([[0.0, 24.0]]))
    product, circles = IndGP(kernel="rbf * periodic(24)", **QUIET).fit(t, Y), IndGP(**QUIET).fit(X, Y)
    np.testing.assert_array_equal(product.predict(t), circles.predict(X))


def test_dates_have_periods_by_name(days):
    t, Y, F = days
    frame = pd.DataFrame(Y, pd.Timestamp("2024-03-01") + pd.to_timedelta(t[:, 0], unit="h"))
    by_name, by_number = (IndGP(kernel=f"rbf * periodic({period})", **QUIET).fit(frame) for period in ("'day'", 1.0))
    np.testing.assert_array_equal(by_name.predict().to_numpy(), by_number.predict().to_numpy())
    assert np.square(by_name.predict().to_numpy() - F)[50:62].mean() < 0.02
    assert by_name.lengthscales_.shape == (5, 1)


def test_neighbours_and_updates_know_seasons(days):
    t, Y, F = days
    settings = {"latent_dim": 2, "num_inducing": 40, "num_neighbors": 12, "epochs": 15}
    model = TLVMOGP(kernel="rbf * periodic(24)", **settings, **QUIET).fit(t[:-12], Y[:-12])
    assert np.square(model.predict(t) - F)[50:62].mean() < 0.1
    assert model.lengthscales_.shape == (1,)
    later = model.update(t[-12:-6], F[-12:-6])
    assert np.square(later.predict(t) - F)[-12:-6].mean() < 0.5 * np.square(model.predict(t) - F)[-12:-6].mean()
