"""Candidates are observed cells; inducing points are where the variance is."""

import numpy as np
import pytest
import torch

from manygp.data import Cells, Grid
from manygp.initialise.inducing import greedy_inducing, sample_cells
from manygp.kernels import cross_covariance, kernel_diagonal

from ...laws import worlds
from ...tolerances import assert_close


def tables(rng, missing):
    """The same cells as a grid with gaps, as a grid with a mask, and as a list."""
    n, p = 30, 8
    X, Y = rng.standard_normal((n, 1)), rng.standard_normal((n, p))
    seen = rng.uniform(size=(n, p)) >= missing
    row, column = np.nonzero(seen)
    return (
        Grid(X, np.where(seen, Y, np.nan)),
        Grid(X, Y, mask=seen),
        Cells(X[row], column, Y[row, column], tuple(range(p))),
    )


@pytest.mark.parametrize("missing", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("size", [5, 60, 1000])
def test_sampled_cells_are_observed(rng, missing, size):
    for table in tables(rng, missing):
        x, output, y = sample_cells(table, worlds.raw(table), size, rng)
        assert len(x) == len(output) == len(y) <= size
        # Cells of a grid are drawn with a margin, so that as many as there are is the most that can be promised.
        assert len(y) >= min(size, table.num_observed) * 0.5
        known = {(float(a), int(b), float(c)) for a, b, c in _cells(table)}
        found = [(float(a), int(b), float(c)) for a, b, c in zip(x[:, 0], output, y, strict=True)]
        assert set(found) <= known
        assert len(set(found)) == len(found)


def _cells(table):
    row, output, y = table.cells(table.places())
    return zip(table.X[row, 0], output, y, strict=True)


def test_sampled_values_are_scaled(rng):
    table, _, _ = tables(rng, 0.3)
    from manygp.data import Scaling

    scaling = Scaling.fit(table)
    x, output, y = sample_cells(table, scaling, 50, rng)
    raw = {(float(a), int(b)): float(c) for a, b, c in _cells(table)}
    for a, b, c in zip(scaling.unscale_x(x)[:, 0], output, y, strict=True):
        match = [value for (x0, p), value in raw.items() if p == b and abs(x0 - a) < 1e-12]
        assert scaling.scale_y(np.array(match), np.array([b]))[0] == pytest.approx(c)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern52"])
def test_points_are_distinct_candidates_and_better_than_random(rng, name):
    kernel, candidates = worlds.random_kernel(name, 2, rng), worlds.normal(rng, 200, 2)

    def left(Z):
        K, Kuu = cross_covariance(kernel, candidates, Z), cross_covariance(kernel, Z, Z)
        explained = (K @ torch.linalg.inv(Kuu + 1e-8 * torch.eye(len(Z))) * K).sum(-1)
        return float((kernel_diagonal(kernel, candidates) - explained).max().detach())

    Z = greedy_inducing(kernel, candidates, 15)
    assert Z.shape == (15, 2)
    assert len({tuple(row) for row in Z.tolist()}) == 15
    assert {tuple(row) for row in Z.tolist()} <= {tuple(row) for row in candidates.tolist()}
    chance = [left(candidates[torch.as_tensor(rng.choice(200, 15, replace=False))]) for _ in range(20)]
    assert left(Z) < min(chance)


def test_each_point_is_where_the_variance_left_is_largest(rng):
    kernel, candidates = worlds.random_kernel("rbf", 2, rng), worlds.normal(rng, 60, 2)
    Z = greedy_inducing(kernel, candidates, 6)
    for i in range(1, 6):
        K, Kuu = cross_covariance(kernel, candidates, Z[:i]), cross_covariance(kernel, Z[:i], Z[:i])
        left = kernel_diagonal(kernel, candidates) - (K * torch.linalg.solve(Kuu, K.T).T).sum(-1)
        assert_close(candidates[int(left.argmax())], Z[i])


def test_more_points_than_distinct_candidates_do_not_break(rng):
    kernel = worlds.random_kernel("rbf", 2, rng)
    Z = greedy_inducing(kernel, worlds.normal(rng, 5, 2).repeat(3, 1), 12)
    assert torch.isfinite(Z).all()
