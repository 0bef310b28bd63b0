"""Factorisation of lists of cells: smooth functions that outputs mix."""

import numpy as np
import pytest

from manygp.data import Cells, Scaling
from manygp.initialise.cells import CellStatistics, Mixture, RadialFeatures
from manygp.initialise.factorisers import CellFactoriser


def waves(rng, cells=600, p=20, noise=0.05):
    X, output = rng.uniform(size=(cells, 1)), rng.integers(p, size=cells)
    F = np.column_stack([np.ones(cells), np.sin(20.0 * X[:, 0]), np.cos(13.0 * X[:, 0])])
    W = np.column_stack([np.ones(p), rng.standard_normal((p, 2))])
    return Cells(X, output, (F * W[output]).sum(1) + noise * rng.standard_normal(cells), range(p))


def test_features_are_those_of_the_kernel(rng):
    x = rng.uniform(size=(50, 2))
    features = RadialFeatures(x, np.array([0.5, 0.8]), rng)
    phi = features(x)
    z = x / np.array([0.5, 0.8])
    K = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(-1))
    np.testing.assert_allclose(phi @ phi.T, K, atol=5e-3)
    A = rng.standard_normal((phi.shape[1], 3))
    np.testing.assert_allclose(features.combine(x, A), phi @ A)


def test_statistics_are_sums_over_cells(rng):
    table = waves(rng, cells=80, p=4)
    scaling = Scaling.fit(table, outputs="none")
    features = RadialFeatures(table.X, np.array([0.2]), rng)
    data = CellStatistics.of(table, scaling, features, np.array([2, 0]))
    phi, y = features(table.X[table.output == 2]), table.y[table.output == 2]
    np.testing.assert_allclose(data.gram[0], phi.T @ phi)
    np.testing.assert_allclose(data.cross[0], phi.T @ y)
    assert data.squares[0] == pytest.approx(y @ y)
    assert data.counts[0] == len(y)


@pytest.mark.parametrize(("cells", "p"), [(600, 20), (1000, 200)])
def test_few_cells_of_many_outputs_tell_the_functions(rng, cells, p):
    table = waves(rng, cells, p)
    scaling = Scaling.fit(table, outputs="global")
    factors = CellFactoriser(table, rng).factorise(scaling, 2)
    error = factors.mean_squared_error(table, scaling)
    assert error < 0.01
    # Loadings have mean 0 and spread 1, and factors carry the scale, as on a grid.
    seen = table.count_per_output() > 0
    np.testing.assert_allclose(factors.loadings[seen].mean(0), 0.0, atol=1e-9)
    np.testing.assert_allclose(factors.loadings[seen].std(0), 1.0, rtol=1e-6)


def test_noise_is_found_and_functions_too_many_do_no_harm(rng):
    table = waves(rng, noise=0.2)
    scaling = Scaling.fit(table, outputs="none")
    features = RadialFeatures(table.X, np.array([0.05]), rng)
    data = CellStatistics.of(table, scaling, features, np.arange(20))
    for rank in (2, 5):
        assert Mixture(data, rank).fit(60, 1e-3).noise == pytest.approx(0.04, rel=0.3)


def test_columns_are_completed_where_an_output_has_no_cells(rng):
    """An output that is seen on one side only has the centre of the whole range."""
    table = waves(rng, cells=1500, p=20)
    rising = Cells(table.X, table.output, 10.0 * table.X[:, 0] + 0.1 * table.y, range(20))
    kept = (rising.output != 3) | (rising.X[:, 0] < 0.4)
    part = rising.take(np.flatnonzero(kept))
    own, common = Scaling.fit(part), Scaling.fit(part, outputs="global")
    completed = CellFactoriser(part, rng).completed(common, 2)
    assert own.y_center[3] < 3.0
    assert completed.y_center[3] == pytest.approx(5.0, abs=0.7)
