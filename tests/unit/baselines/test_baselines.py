import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from manygp.baselines import BASELINES, Boosting, Interpolation, LowRank, NearestRows, RidgeOutputs
from manygp.baselines.baseline import closest_outputs
from manygp.data import Grid, Scaling, factorise
from manygp.errors import DataError, SettingError


def mixtures(n, p, rng, noise=0.05, missing=0.25):
    """Inputs, a complete table of mixtures of three waves, and the same with gaps."""
    X = np.sort(rng.uniform(0.0, 1.0, n))[:, None]
    waves = np.sin(2.0 * np.pi * X * (1.0, 2.0, 3.0))
    complete = waves @ rng.standard_normal((3, p)) + noise * rng.standard_normal((n, p))
    return X, complete, np.where(rng.random((n, p)) < missing, np.nan, complete)


@pytest.fixture(params=list(BASELINES))
def method(request):
    return BASELINES[request.param]()


def test_observed_cells_stay_and_gaps_are_filled_better_than_by_means(method, rng):
    X, complete, Y = mixtures(150, 8, rng)
    filled, gaps = method.fill(X, Y), np.isnan(Y)
    np.testing.assert_array_equal(filled[~gaps], Y[~gaps])
    means = np.broadcast_to(np.nanmean(Y, 0), Y.shape)
    assert np.mean((filled - complete)[gaps] ** 2) < 0.5 * np.mean((means - complete)[gaps] ** 2)


def test_units_do_not_matter(method, rng):
    X, _, Y = mixtures(60, 5, rng)
    unit = 10.0 ** np.arange(-2, 3)
    np.testing.assert_allclose(method.fill(3.0 + 7.0 * X, 2.0 + unit * Y), 2.0 + unit * method.fill(X, Y), rtol=1e-6)


def test_seeds_reproduce_and_clones_agree(method, rng):
    X, _, Y = mixtures(60, 5, rng)
    np.testing.assert_array_equal(clone(method).fill(X, Y), method.fill(X, Y))


def test_a_complete_table_comes_back(method, rng):
    X, complete, _ = mixtures(30, 4, rng)
    np.testing.assert_array_equal(method.fill(X, complete), complete)


def test_a_single_output_is_filled(method, rng):
    X, _, Y = mixtures(40, 1, rng)
    assert np.isfinite(method.fill(X, Y)).all()


def test_a_constant_output_stays_constant(method, rng):
    X, _, Y = mixtures(40, 3, rng)
    Y[:, 1] = np.where(np.isnan(Y[:, 1]), np.nan, 7.0)
    np.testing.assert_allclose(method.fill(X, Y)[:, 1], 7.0, atol=1e-5)


def test_cells_with_inputs_of_their_own_are_filled(method, rng):
    X = rng.uniform(-1.0, 1.0, (300, 2))
    complete = np.stack([X.sum(1), X[:, 0] ** 2, -X.sum(1)], 1)
    Y = np.where(np.arange(3) == rng.integers(0, 3, 300)[:, None], complete, np.nan)
    assert np.isfinite(method.fill(X, Y)).all()


def test_an_output_without_cells_is_refused(method, rng):
    X, _, Y = mixtures(20, 3, rng)
    Y[:, 2] = np.nan
    with pytest.raises(DataError, match="Output 2 has no observed cell"):
        method.fill(X, Y)


def test_errors_are_those_of_cells_in_gaps_or_a_little_more(method, rng):
    X, complete, Y = mixtures(500, 6, rng, noise=0.3)
    std, gaps = method.error_std(X, Y), np.isnan(Y)
    assert std.shape == (6,)
    actual = np.sqrt(np.mean((method.fill(X, Y) - complete)[gaps] ** 2))
    assert 0.85 * actual < np.sqrt(np.mean(std**2)) < 1.35 * actual


def test_interpolation_is_straight_inside_and_constant_beyond():
    X = np.array([[3.0], [0.0], [1.0], [2.0], [4.0], [1.0]])
    Y = np.array([[np.nan], [np.nan], [0.0], [np.nan], [6.0], [2.0]])
    # At 1 there are two observations, of mean 1.
    filled = Interpolation().fill(X, Y)[:, 0]
    np.testing.assert_allclose(filled[[0, 1, 3]], [1.0 + 5.0 * 2.0 / 3.0, 1.0, 1.0 + 5.0 / 3.0])


def test_interpolation_of_several_inputs_weighs_by_distance():
    X = np.array([[0.0, 0.0], [1.0, 1.0], [4.0, 4.0]])
    Y = np.array([[0.0], [np.nan], [8.0]])
    # Distances are as 1 to 3.
    assert Interpolation().fill(X, Y)[1, 0] == pytest.approx(2.0)


def test_rows_are_alike_by_outputs_where_time_says_nothing(rng):
    state = rng.uniform(0.0, 1.0, (400, 1))
    complete = np.sin(3.0 * state + np.arange(5))
    X, Y = np.arange(400.0)[:, None], np.where(rng.random((400, 5)) < 0.2, np.nan, complete)
    gaps = np.isnan(Y)
    errors = {by: np.mean((NearestRows(by=by).fill(X, Y) - complete)[gaps] ** 2) for by in ("inputs", "outputs")}
    assert errors["outputs"] < 0.1 * errors["inputs"]
    chosen = np.mean((NearestRows().fill(X, Y) - complete)[gaps] ** 2)
    assert chosen < 2.0 * errors["outputs"]


def test_rows_are_drawn_from_a_long_table(rng):
    X, _, Y = mixtures(200, 4, rng)
    assert np.isfinite(NearestRows(5, "outputs", max_rows=50).fill(X, Y)).all()


def test_an_unknown_likeness_is_refused(rng):
    X, _, Y = mixtures(20, 3, rng)
    with pytest.raises(SettingError, match="by='looks' is no likeness"):
        NearestRows(by="looks").fill(X, Y)


def test_ridge_finds_linear_relations_exactly(rng):
    others = rng.standard_normal((80, 3))
    X = rng.standard_normal((80, 1))
    Y = np.hstack([others, others @ [[1.0], [-2.0], [0.5]] + 3.0 * X])
    gap = np.arange(80) % 4 == 0
    expected = LinearRegression().fit(np.hstack([others, X])[~gap], Y[~gap, 3]).predict(np.hstack([others, X])[gap])
    Y[gap, 3] = np.nan
    np.testing.assert_allclose(RidgeOutputs().fill(X, Y)[gap, 3], expected, atol=1e-3)


def test_ridge_looks_through_the_gaps_of_its_predictors(rng):
    """Each output is a copy of the others: a row that has one cell left has all of them."""
    value = rng.standard_normal(100)
    Y = np.repeat(value[:, None], 4, 1)
    Y[np.arange(100)[:, None], np.argsort(rng.random((100, 4)), 1)[:, :2]] = np.nan
    X = rng.standard_normal((100, 1))
    error = np.sqrt(np.mean((RidgeOutputs().fill(X, Y) - value[:, None]) ** 2))
    assert error < 0.1


def test_low_rank_is_our_factorisation(rng):
    X, _, Y = mixtures(50, 10, rng)
    scaling = Scaling.fit(Grid(X, Y), outputs="output")
    scaled = Grid(scaling.scale_x(X), scaling.scale_y(Y))
    plain = Scaling.fit(scaled, outputs="none")
    expected = scaling.unscale_mean(factorise(scaled, plain, 3, rng=np.random.default_rng(0)).predict())
    np.testing.assert_allclose(LowRank(3).fill(X, Y)[np.isnan(Y)], expected[np.isnan(Y)])


def test_boosting_follows_what_bends(rng):
    X = rng.uniform(-1.0, 1.0, (600, 2))
    complete = np.stack([np.sign(X[:, 0]) * X[:, 1], X[:, 0] ** 2], 1)
    Y = np.where(rng.random((600, 2)) < 0.2, np.nan, complete)
    gaps = np.isnan(Y)
    boosted, linear = (method.fill(X, Y) for method in (Boosting(), RidgeOutputs()))
    assert np.mean((boosted - complete)[gaps] ** 2) < 0.1 * np.mean((linear - complete)[gaps] ** 2)


def test_closest_outputs_are_the_most_correlated(rng):
    a, b = rng.standard_normal((2, 200))
    Y = np.stack([a, b, -a + 0.1 * b, b + 0.2 * a], 1)
    Y[rng.random(Y.shape) < 0.2] = np.nan
    Y = (Y - np.nanmean(Y, 0)) / np.nanstd(Y, 0)
    assert closest_outputs(Y, 1)[:, 0].tolist() == [2, 3, 0, 1]
    assert closest_outputs(Y, 9).shape == (4, 3)
