"""A `Prediction` of known components: exact moments, refusals, memory and export."""

import numpy as np
import pandas as pd
import pytest
import torch

from manygp import DataError, Prediction, SettingError
from manygp import prediction as prediction_module
from manygp.data import Scaling
from manygp.likelihoods import Gaussian, Noiseless

from ..laws import worlds

SCALING = Scaling(np.zeros(1), np.ones(1), np.array([10.0, -5.0]), np.array([2.0, 0.5]))
NOISE = 0.3


class World:
    """Components drawn once, and how often they were asked for."""

    def __init__(self, rng, shape, draws=4):
        self.means = worlds.normal(rng, draws, int(np.prod(shape)))
        self.variances = 0.1 + worlds.normal(rng, *self.means.shape).square()
        self.shape, self.asked = shape, []

    def components(self, cells):
        self.asked.append(len(cells))
        return self.means[:, cells], self.variances[:, cells], torch.as_tensor(cells % 2)

    def prediction(self, chunk=5, likelihood=None):
        rows = self.shape[0]
        outputs = np.arange(2) if len(self.shape) == 2 else np.arange(rows) % 2
        names = ["a", ("b", 1)] if len(self.shape) == 2 else [("a", "b")[i % 2] for i in range(rows)]
        inputs = np.arange(2.0 * rows).reshape(rows, 2)
        return Prediction(
            self.components,
            self.shape,
            likelihood or Gaussian(2, NOISE),
            SCALING,
            chunk,
            inputs,
            outputs,
            names,
            worlds.CPU,
        )


@pytest.fixture
def world(rng):
    return World(rng, (6, 2))


def test_moments_are_those_of_the_mixture(world):
    dist = world.prediction()
    means, variances = (part.numpy().reshape(4, 6, 2) for part in (world.means, world.variances))
    np.testing.assert_allclose(dist.mean, means.mean(0) * SCALING.y_scale + SCALING.y_center)
    # var y = E[v + σ²] + var m
    variance = (variances + NOISE).mean(0) + means.var(0)
    np.testing.assert_allclose(dist.variance, variance * SCALING.y_scale**2)
    np.testing.assert_allclose(dist.std, np.sqrt(dist.variance))


def test_densities_are_log_sum_exp_over_the_draws(world):
    dist = world.prediction(likelihood=Noiseless())
    y = np.zeros((6, 2))
    scaled = torch.as_tensor(SCALING.scale_y(y).reshape(-1))
    parts = torch.distributions.Normal(world.means, world.variances.sqrt()).log_prob(scaled)
    expected = (torch.logsumexp(parts, 0) - np.log(4)).numpy().reshape(6, 2) - np.log(SCALING.y_scale)
    np.testing.assert_allclose(dist.log_prob(y), expected)


def test_one_gaussian_has_the_known_crps(rng):
    """σ (z (2Φ(z) − 1) + 2φ(z) − 1/√π)."""
    world = World(rng, (6, 2), draws=1)
    dist = world.prediction()
    y = dist.mean + dist.std * rng.standard_normal((6, 2))
    z = (y - dist.mean) / dist.std
    normal = torch.distributions.Normal(0.0, 1.0)
    cdf, density = normal.cdf(torch.as_tensor(z)).numpy(), np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(dist.crps(y), dist.std * (z * (2 * cdf - 1) + 2 * density - 1 / np.sqrt(np.pi)))


def test_quantiles_of_well_separated_components(rng):
    """Nearly all mass in two far lumps: bisection must find each."""
    world = World(rng, (3, 2), draws=2)
    world.means = torch.stack([torch.full((6,), -1e4), torch.full((6,), 1e4)]).double()
    dist = world.prediction()
    for level in (0.1, 0.9):
        np.testing.assert_allclose(dist.cdf(dist.quantile(level)), level, atol=1e-9)


def test_extreme_levels(world):
    dist = world.prediction()
    for level in (1e-6, 1 - 1e-6):
        np.testing.assert_allclose(dist.cdf(dist.quantile(level)), level, rtol=1e-6)


@pytest.mark.parametrize("levels", [0.0, 1.0, -0.1, 1.5, [0.5, 1.0], [-0.5, 0.5], float("nan"), []])
def test_quantile_levels_outside_the_unit_interval(world, levels):
    with pytest.raises(SettingError, match="strictly between 0 and 1"):
        world.prediction().quantile(levels)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 90.0])
def test_interval_levels_outside_the_unit_interval(world, level):
    with pytest.raises(SettingError, match=f"interval\\({level}.*strictly between 0 and 1"):
        world.prediction().interval(level)


@pytest.mark.parametrize("n", [0, -1, True])
def test_no_number_of_draws(world, n):
    with pytest.raises(SettingError, match="whole number of at least 1"):
        world.prediction().sample(n)


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_no_seed(world, seed):
    with pytest.raises(SettingError, match="is no seed"):
        world.prediction().sample(1, seed)


def test_values_that_are_no_numbers(world):
    dist = world.prediction()
    for ask in (dist.log_prob, dist.cdf, dist.crps, dist.score):
        with pytest.raises(DataError, match="numbers were expected"):
            ask("ninety")


def test_nothing_to_score(world):
    with pytest.raises(DataError, match="Y has no value to score"):
        world.prediction().score(np.full((6, 2), np.nan))


@pytest.mark.parametrize("shape", [(6,), (5, 2), (6, 3), (2, 6), (6, 2, 1)])
def test_values_of_another_shape(world, shape):
    for method in ("log_prob", "cdf", "crps", "score"):
        with pytest.raises(DataError, match=r"Y has shape .*the prediction has shape \(6, 2\)"):
            getattr(world.prediction(), method)(np.zeros(shape))


def test_values_in_other_containers(world):
    dist, y = world.prediction(), np.arange(12.0).reshape(6, 2)
    for values in (y.tolist(), pd.DataFrame(y), y.astype(np.float32), y.astype(int)):
        np.testing.assert_array_equal(dist.log_prob(values), dist.log_prob(y))


def test_columns_that_name_their_outputs_come_in_any_order(world):
    dist, y = world.prediction(), np.arange(12.0).reshape(6, 2)
    named = pd.DataFrame(y).set_axis(pd.Index(["a", ("b", 1)], tupleize_cols=False), axis=1)
    np.testing.assert_array_equal(dist.log_prob(named.iloc[:, ::-1]), dist.log_prob(y))
    assert dist.score(named.iloc[:, ::-1]) == dist.score(y)


def test_small_predictions_are_computed_once(world):
    dist = world.prediction()
    dist.mean, dist.quantile(0.5), dist.log_prob(np.zeros((6, 2)))
    assert world.asked == [5, 5, 2]


def test_large_predictions_are_computed_anew_in_chunks(world, monkeypatch):
    monkeypatch.setattr(prediction_module, "_MAX_KEPT", 10)
    dist = world.prediction()
    dist.mean, dist.quantile(0.5)
    assert world.asked == [5, 5, 2] * 2


def test_scores_compute_only_observed_cells(world):
    y = np.full((6, 2), np.nan)
    y[0, 0], y[3, 1], y[5, 0] = 1.0, 2.0, 3.0
    assert world.prediction().score(y)["num_cells"] == 3
    assert world.asked == [3]


def test_a_frame_of_a_grid(world):
    dist = world.prediction()
    frame = dist.to_frame(0.8)
    assert list(frame.columns) == ["x0", "x1", "output", "mean", "std", "lower80", "upper80"]
    assert len(frame) == 12
    assert frame["output"].tolist() == ["a", ("b", 1)] * 6
    assert frame["x0"].tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    np.testing.assert_array_equal(frame["mean"].to_numpy().reshape(6, 2), dist.mean)
    np.testing.assert_array_equal(frame["upper80"].to_numpy().reshape(6, 2), dist.interval(0.8)[1])


def test_a_frame_of_cells(rng):
    dist = World(rng, (6,)).prediction()
    frame = dist.to_frame()
    assert frame["output"].tolist() == ["a", "b"] * 3
    assert frame["x1"].tolist() == [1, 3, 5, 7, 9, 11]
    np.testing.assert_array_equal(frame["std"], dist.std)
    assert (frame["lower90"] < frame["upper90"]).all()


def test_values_read_backwards_are_values(world):
    dist, values = world.prediction(), np.arange(12.0).reshape(6, 2)
    backwards = values[::-1, ::-1].copy()[::-1, ::-1]
    assert min(backwards.strides) < 0
    for ask in (dist.log_prob, dist.crps, dist.cdf):
        assert np.array_equal(ask(backwards), ask(values))
    assert dist.score(backwards) == dist.score(values)


def test_dates_are_no_values(world):
    with pytest.raises(DataError, match="Y holds dates and outputs are numbers"):
        world.prediction().score(np.full((6, 2), np.datetime64("2020-01-01")))


def test_frames_of_other_libraries_come_in_any_order(world):
    arrow = pytest.importorskip("pyarrow")
    values = np.arange(12.0).reshape(6, 2)
    dist = world.prediction()
    dist.output_names = ("a", "b")
    turned = arrow.table({"b": values[:, 1], "a": values[:, 0]})
    assert np.array_equal(dist.log_prob(turned), dist.log_prob(values))


def test_errors_too_large_to_square(world):
    with pytest.raises(DataError, match=r"Y is 1e\+200 away from its prediction, which is too far to square"):
        world.prediction().score(np.full((6, 2), 1e200))


def test_a_prediction_says_what_it_is(world, rng):
    assert repr(world.prediction()).startswith("<Prediction of Gaussian values: 6 inputs x 2 outputs ('a', ('b', 1));")
    cells = World(rng, (7,)).prediction(likelihood=Noiseless())
    assert repr(cells).startswith("<Prediction of functions: 7 cells ('a', 'b', 'a', ...);")
    assert not world.asked
