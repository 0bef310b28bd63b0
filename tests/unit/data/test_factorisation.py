import os
from pathlib import Path

import numpy as np
import pytest

from manygp.data import Cells, Grid, Scaling, choose_rank, completed_scaling, factorisation, factorise
from manygp.data.lowrank import Block, start, step
from manygp.errors import DataError, SettingError


def low_rank(n, p, rank, observed, noise=0.1, seed=0):
    """Return a table with gaps, and its truth at the gaps."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)[:, None] + rng.normal(size=(n, rank)) @ rng.normal(size=(rank, p))
    seen = rng.uniform(size=truth.shape) < observed
    X = np.arange(float(n))[:, None]
    noisy = truth + noise * rng.normal(size=truth.shape)
    return Grid(X, np.where(seen, noisy, np.nan)), Grid(X, np.where(seen, np.nan, truth))


def unscaled(table):
    return Scaling.fit(table, outputs="none")


@pytest.mark.parametrize(("n", "p"), [(30, 400), (60, 60), (400, 30)])
def test_gaps_of_a_low_rank_table_are_filled(n, p):
    table, gaps = low_rank(n, p, 3, observed=0.6)
    fitted = factorise(table, unscaled(table), 3)
    assert fitted.mean_squared_error(gaps, unscaled(table)) < 0.01
    np.testing.assert_allclose(fitted.noise_variance, 0.01, rtol=0.15)


def test_too_high_a_rank_does_no_harm():
    table, gaps = low_rank(100, 100, 3, observed=0.2, noise=0.3)
    right, high = (
        factorise(table, unscaled(table), rank).mean_squared_error(gaps, unscaled(table)) for rank in (3, 15)
    )
    assert high < 1.1 * right


def test_faint_factors_are_kept_where_little_counts_as_noise():
    table, _ = low_rank(20, 300, 2, observed=1.0, noise=0.3)
    usual, all_kept = (factorise(table, unscaled(table), 10, most_noise=noise) for noise in (np.inf, 1e-4))
    assert (usual.spread > 0.01).sum() == 2
    assert (all_kept.spread > 0.01).sum() == 10
    assert all_kept.noise_variance < usual.noise_variance


def test_factors_settle_however_little_counts_as_noise(rng):
    """Of factors that explain less and less, the first three are those of a singular value decomposition."""
    Y = rng.standard_normal((30, 200)) @ np.diag(0.93 ** np.arange(200)) @ rng.standard_normal((200, 200))
    table = Grid(np.arange(30.0)[:, None], Y / Y.std())
    found = factorise(table, unscaled(table), 3, most_noise=1e-6)
    best = np.linalg.svd(table.Y - table.Y.mean(1, keepdims=True), compute_uv=False)
    left = found.mean_squared_error(table, unscaled(table)) * table.num_observed
    assert left < 1.01 * np.square(best[3:]).sum()


@pytest.mark.parametrize(("n", "p"), [(20, 90), (90, 20)])
def test_factors_are_canonical(n, p):
    table, _ = low_rank(n, p, 3, observed=0.7)
    table.Y[:, 4] = np.nan
    fitted = factorise(table, unscaled(table), 5)
    seen = np.delete(fitted.loadings, 4, axis=0)
    np.testing.assert_allclose(seen.mean(axis=0), 0.0, atol=1e-9)
    held = fitted.spread > 0
    assert held[:3].all()
    np.testing.assert_allclose(seen.T @ seen / (p - 1), np.diag(held.astype(float)), atol=1e-9)
    gram = fitted.row_factors.T @ fitted.row_factors
    sizes = np.diag(gram)
    np.testing.assert_allclose(gram, np.diag(sizes), atol=1e-9 * sizes[0])
    np.testing.assert_allclose(fitted.spread, np.sqrt(sizes / n), atol=1e-9)
    assert (np.diff(fitted.spread) <= 0).all()
    assert (fitted.loadings[4] == 0).all()
    np.testing.assert_array_equal(fitted.predict(outputs=np.array([4]))[:, 0], fitted.row_mean)


def test_predictions_at_some_rows_and_outputs_are_those_of_the_whole():
    table, _ = low_rank(12, 9, 2, observed=0.8)
    fitted = factorise(table, unscaled(table), 2)
    rows, outputs = np.array([3, 1]), np.array([8, 0, 2])
    np.testing.assert_allclose(fitted.predict(rows, outputs), fitted.predict()[np.ix_(rows, outputs)])


def test_sparse_corners_stay_finite():
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(20, 50))
    Y[rng.uniform(size=Y.shape) < 0.95] = np.nan
    Y[:, 0], Y[3] = np.nan, np.nan
    Y[:, 1] = np.nan
    Y[5, 1] = 2.0
    fitted = factorise(Grid(np.zeros((20, 1)), Y), unscaled(Grid(np.zeros((20, 1)), Y)), 6)
    assert np.isfinite(fitted.predict()).all()
    assert np.abs(fitted.predict()).max() < 10


@pytest.mark.parametrize("Y", [np.ones((5, 4)), np.zeros((5, 4)), np.array([[1e-8], [2e-8]]), np.array([[3.0]])])
def test_trivial_tables_are_factorised(Y):
    table = Grid(np.zeros((len(Y), 1)), Y)
    fitted = factorise(table, unscaled(table), 3)
    assert fitted.loadings.shape == (Y.shape[1], 3)
    assert np.isfinite(fitted.loadings).all()
    np.testing.assert_allclose(fitted.predict(), Y, atol=0.1 * max(1e-6, np.abs(Y).max()))


@pytest.mark.parametrize("wide", [True, False])
def test_a_step_is_the_ridge_regression_it_claims_to_be(wide):
    rng = np.random.default_rng(0)
    Y, seen = rng.normal(size=(4, 6)), rng.uniform(size=(4, 6)) < 0.7
    block = Block(slice(0, 4), np.where(seen, Y, 0.0), seen.astype(float))
    state = start([block], 4, 6, rank=2, wide=wide, rng=rng)
    design = np.hstack([np.ones((6, 1)), state.v])
    u, cov = np.zeros((4, 3)), np.zeros((4, 3, 3))
    for n in range(4):
        a = design[seen[n]]
        cov[n] = np.linalg.inv(np.diag(state.u_precision) + a.T @ a / state.noise)
        u[n] = cov[n] @ (state.u_precision * state.u_mean + a.T @ Y[n, seen[n]] / state.noise)
    squares = (Y - u @ design.T) ** 2 + np.einsum("pi,nij,pj->np", design, cov, design)
    step(state, [block], integrate_both=True)
    noise = squares[seen].mean()
    np.testing.assert_allclose(state.noise, noise)
    v = np.zeros((6, 2))
    for p in range(6):
        at = seen[:, p]
        moments = u[at, :, None] * u[at, None, :] + cov[at]
        right = (u[at, 1:] * Y[at, p, None] - moments[:, 1:, 0]).sum(axis=0) / noise
        v[p] = np.linalg.solve(np.eye(2) + moments[:, 1:, 1:].sum(axis=0) / noise, right)
    # The rotation at the end changes coordinates and not predictions.
    predicted = state.u @ np.hstack([np.ones((6, 1)), state.v]).T
    np.testing.assert_allclose(predicted, u @ np.hstack([np.ones((6, 1)), v]).T, atol=1e-6)


def test_a_sample_polished_on_the_whole_is_as_good(monkeypatch):
    for n, p in ((20, 600), (600, 20)):
        table, gaps = low_rank(n, p, 3, observed=0.6)
        whole = factorise(table, unscaled(table), 3).mean_squared_error(gaps, unscaled(table))
        with monkeypatch.context() as patch:
            patch.setattr(factorisation, "SAMPLE_SIDE", 100)
            patch.setattr(factorisation, "SAMPLE_CELLS", 1)
            sampled = factorise(table, unscaled(table), 3).mean_squared_error(gaps, unscaled(table))
        assert sampled < 1.1 * whole


def test_the_true_rank_is_chosen():
    table, _ = low_rank(40, 200, 3, observed=0.6)
    choice = choose_rank(table, Scaling.fit(table, outputs="global"))
    assert choice.rank == 3
    assert choice.errors[3] < choice.errors[2]


@pytest.mark.parametrize("Y", [np.array([[1.0]]), np.array([[1.0, np.nan], [np.nan, 2.0]]), np.ones((3, 1))])
def test_a_rank_is_chosen_for_the_smallest_tables(Y):
    table = Grid(np.zeros((len(Y), 1)), Y)
    assert choose_rank(table, Scaling.fit(table, outputs="global")).rank >= 1


def test_the_same_seed_gives_the_same_factors():
    table, _ = low_rank(20, 30, 2, observed=0.6)
    a, b = (factorise(table, unscaled(table), 2) for _ in range(2))
    np.testing.assert_array_equal(a.loadings, b.loadings)


def test_completed_columns_give_the_scale_that_gaps_hide():
    rng = np.random.default_rng(0)
    season = np.sin(np.linspace(0, 4 * np.pi, 48))
    truth = rng.normal(10.0, 3.0, 200) + season[:, None] * rng.uniform(2.0, 4.0, 200)
    Y = truth + 0.05 * rng.normal(size=truth.shape)
    Y[np.ix_(season > 0.3, np.arange(60))] = np.nan
    table = Grid(np.arange(48.0)[:, None], Y)
    observed = Scaling.fit(table)
    shared = Scaling.fit(table, outputs="global")
    completed = completed_scaling(table, shared, factorise(table, shared, 3))
    np.testing.assert_allclose(completed.y_center, truth.mean(axis=0), atol=0.15)
    np.testing.assert_allclose(completed.y_scale, truth.std(axis=0), rtol=0.1)
    assert np.abs(observed.y_center - truth.mean(axis=0))[:60].min() > 0.5


def test_bad_requests_are_refused():
    table, _ = low_rank(5, 5, 1, observed=0.9)
    for rank in (0, -1, 1.5, True):
        with pytest.raises(SettingError, match="rank"):
            factorise(table, unscaled(table), rank)
    with pytest.raises(DataError, match="no observed cell"):
        factorise(Grid(np.zeros((2, 1)), np.full((2, 2), np.nan)), unscaled(table), 1)
    cells = Cells(np.zeros((1, 1)), np.array([0]), np.array([1.0]))
    with pytest.raises(DataError, match="to_grid"):
        factorise(cells, unscaled(cells), 1)


@pytest.mark.parametrize(("name", "rank", "most"), [("era5_random", 8, 0.0012), ("era5_block", 8, 0.0017)])
def test_real_temperatures_are_completed(name, rank, most):
    h5py = pytest.importorskip("h5py")
    folder = os.environ.get("MANYGP_DATA")
    if folder is None or not (Path(folder) / f"{name}.h5").exists():
        pytest.skip(f"MANYGP_DATA does not name a folder that holds {name}.h5")
    with h5py.File(Path(folder) / f"{name}.h5") as file:
        X = file["all_X"][:]
        train, test = (
            Grid(X, file[f"{part}/{part}_Y"][:].astype(float), mask=file[f"{part}/{part}_mask"][:])
            for part in ("train", "test")
        )
    scaling = Scaling.fit(train, outputs="global")
    assert factorise(train, scaling, rank).mean_squared_error(test, scaling) < most


@pytest.mark.parametrize(("n", "p"), [(30, 200), (200, 30)])
def test_a_path_of_ranks_is_as_good_as_each_by_itself(n, p):
    table, gaps = low_rank(n, p, 3, observed=0.6)
    scaling, ranks = unscaled(table), (1, 2, 3, 4)
    path = [fit.mean_squared_error(gaps, scaling) for fit in factorisation.factorise_path(table, scaling, ranks)]
    alone = [factorise(table, scaling, rank).mean_squared_error(gaps, scaling) for rank in ranks]
    np.testing.assert_allclose(path, alone, rtol=0.1)
