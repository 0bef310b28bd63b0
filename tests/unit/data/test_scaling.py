import numpy as np
import pytest
from hypothesis import given

from manygp.data import Cells, Grid, Scaling, as_table, cells_table
from manygp.errors import DataError, SettingError

from .tables import grids, tables


@given(tables)
def test_the_way_there_and_back_is_the_identity(table):
    for outputs in ("output", "global", "none"):
        scaling = Scaling.fit(table, outputs=outputs)
        np.testing.assert_allclose(scaling.unscale_x(scaling.scale_x(table.X)), table.X, rtol=1e-9, atol=1e-6)
        y = np.linspace(-3.0, 3.0, table.num_outputs)
        np.testing.assert_allclose(scaling.unscale_mean(scaling.scale_y(y)), y, rtol=1e-9, atol=1e-6)
        assert (scaling.x_scale > 0).all()
        assert (scaling.y_scale > 0).all()


@given(grids())
def test_statistics_are_those_of_the_observed_cells(table):
    scaling = Scaling.fit(table)
    values = table.block(np.arange(table.num_inputs), np.arange(table.num_outputs))
    seen = values[~np.isnan(values)]
    for p in range(table.num_outputs):
        column = values[~np.isnan(values[:, p]), p]
        expected = column if len(column) >= 2 else seen
        np.testing.assert_allclose(scaling.y_center[p], expected.mean(), rtol=1e-9, atol=1e-6)
        if expected.std() > 1e-9 * np.abs(expected).max():
            np.testing.assert_allclose(scaling.y_scale[p], expected.std(), rtol=1e-6)
    shared = Scaling.fit(table, outputs="global")
    np.testing.assert_allclose(shared.y_center, seen.mean(), rtol=1e-9, atol=1e-6)


def test_chunks_give_the_statistics_of_the_whole(monkeypatch):
    rng = np.random.default_rng(0)
    Y = rng.normal(3.0, 2.0, (100, 7))
    Y[rng.uniform(size=Y.shape) < 0.4] = np.nan
    whole = Scaling.fit(Grid(np.zeros((100, 1)), Y))
    monkeypatch.setattr(Grid.row_chunks, "__defaults__", (20,))
    chunked = Scaling.fit(Grid(np.zeros((100, 1)), Y))
    np.testing.assert_allclose(chunked.y_scale, whole.y_scale, rtol=1e-12)
    np.testing.assert_allclose(whole.y_center, np.nanmean(Y, axis=0), rtol=1e-12)
    np.testing.assert_allclose(whole.y_scale, np.nanstd(Y, axis=0), rtol=1e-12)


def test_the_unit_of_constants_is_their_level():
    table = Grid(np.full((9, 2), 0.1), np.full((9, 2), 0.3))
    for outputs in ("output", "global"):
        scaling = Scaling.fit(table, outputs=outputs)
        assert scaling.x_scale.tolist() == [1.0, 1.0]
        np.testing.assert_allclose(scaling.y_scale, 0.3)
        np.testing.assert_allclose(scaling.y_center, 0.3)


def test_a_constant_output_has_the_unit_of_the_others():
    Y = np.random.default_rng(0).normal(size=(9, 4)) * [1.0, 3.0, 1.0, 9.0]
    Y[:, 2] = 1e6 + 1e-10 * Y[:, 2]
    scale = Scaling.fit(Grid(np.arange(9.0)[:, None], Y)).y_scale
    assert scale[2] == np.median(scale[[0, 1, 3]])
    np.testing.assert_allclose(Scaling.fit(Grid(np.arange(9.0)[:, None], 1e-7 * Y)).y_scale, 1e-7 * scale)


def test_rounding_errors_of_a_constant_are_small_in_its_unit():
    Y = np.random.default_rng(0).normal(size=(9, 2)) * [1e-80, 0.0] + [0.0, 1e6 + 1e-10]
    Y[::2, 1] += 1e-10
    scaling = Scaling.fit(Grid(np.arange(9.0)[:, None], Y))
    assert np.abs(scaling.scale_y(Y)).max() < 5.0


def test_outputs_with_fewer_than_two_cells_take_the_global_statistics():
    Y = np.array([[1.0, 5.0, np.nan], [3.0, np.nan, np.nan]])
    scaling = Scaling.fit(Grid(np.zeros((2, 1)), Y))
    seen = np.array([1.0, 5.0, 3.0])
    np.testing.assert_allclose(scaling.y_center, [2.0, seen.mean(), seen.mean()])
    np.testing.assert_allclose(scaling.y_scale, [1.0, seen.std(), seen.std()])


def test_cells_and_grid_agree():
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(6, 2)), rng.normal(size=(6, 3))
    row, output = np.divmod(np.arange(18), 3)
    cells = Cells(X[row], output, Y.ravel())
    for kind in ("output", "global"):
        a, b = Scaling.fit(cells, outputs=kind), Scaling.fit(Grid(X, Y), outputs=kind)
        for name, value in a.arrays().items():
            np.testing.assert_allclose(value, b.arrays()[name], rtol=1e-12)


def test_moments_and_densities_change_units_together():
    scaling = Scaling(np.zeros(1), np.ones(1), np.array([1.0, -2.0, 0.5]), np.array([2.0, 0.5, 10.0]))
    outputs = np.array([2, 0])
    mean, variance, y = np.array([[0.3, -0.2]]), np.array([[0.5, 2.0]]), np.array([[4.0, 2.5]])

    def log_normal(y, mean, variance):
        return -0.5 * np.log(2 * np.pi * variance) - 0.5 * (y - mean) ** 2 / variance

    scaled = log_normal(scaling.scale_y(y, outputs), mean, variance)
    direct = log_normal(y, scaling.unscale_mean(mean, outputs), scaling.unscale_variance(variance, outputs))
    np.testing.assert_allclose(scaling.unscale_log_prob(scaled, outputs), direct)


def test_arrays_rebuild_the_scaling():
    table = Grid(np.arange(4.0)[:, None], np.arange(8.0).reshape(4, 2))
    scaling = Scaling.fit(table)
    again = Scaling.from_arrays(scaling.arrays())
    for name, value in scaling.arrays().items():
        assert np.array_equal(again.arrays()[name], value)


def test_inputs_and_outputs_can_be_left_alone():
    table = Grid(np.arange(4.0)[:, None], np.arange(8.0).reshape(4, 2))
    scaling = Scaling.fit(table, inputs=False, outputs="none")
    assert np.array_equal(scaling.scale_x(table.X), table.X)
    assert np.array_equal(scaling.scale_y(table.Y), table.Y)


def test_bad_requests_are_refused():
    table = Grid(np.zeros((2, 1)), np.array([[1e200], [-1e200]]))
    with pytest.raises(DataError, match="too large"):
        Scaling.fit(table)
    with pytest.raises(DataError, match="no observed cell"):
        Scaling.fit(Grid(np.zeros((2, 1)), np.full((2, 1), np.nan)))
    with pytest.raises(SettingError, match='"output", "global" or "none"'):
        Scaling.fit(table, outputs="row")


@pytest.mark.parametrize("kind", ["grid", "cells"])
def test_values_too_small_to_square_are_pointed_at(kind):
    Y = np.random.default_rng(0).normal(size=(6, 2)) * [1.0, 1e-165]
    X = np.arange(6.0)[:, None]
    table = as_table(X, Y) if kind == "grid" else cells_table(np.vstack([X, X]), [0] * 6 + [1] * 6, Y.T.reshape(-1))
    with pytest.warns(UserWarning, match=r"Output 1 varies by .*e-166 only"):
        Scaling.fit(table)
    with pytest.warns(UserWarning, match="An input varies by 5e-165 only"):
        Scaling.fit(as_table(X * 1e-165, Y[:, :1]))
    # A level that is too small to square is no unit.
    constant = Scaling.fit(as_table(X, np.full((6, 2), [0.0, 1e-200])))
    assert constant.y_scale.tolist() == [1.0, 1.0]
