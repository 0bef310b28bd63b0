import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manygp.data import CellPlan, Cells, Grid, GridPlan, Scaling
from manygp.errors import DataError, SettingError

from .tables import grids, observed_cells, tables


def identity(table):
    return Scaling.fit(table, inputs=False, outputs="none")


def check_partition(plan, table, rng):
    """Every observed cell once, values and inputs right, cells and outputs weighted to the full sums."""
    batches = list(plan.epoch(rng))
    assert len(batches) == len(plan)
    cells = [
        (int(row), int(batch.outputs[column]), float(y))
        for batch in batches
        for row, column, y in zip(batch.row, batch.column, batch.y, strict=True)
    ]
    assert len(cells) == table.num_observed
    assert set(cells) == observed_cells(table)
    output_weight = np.zeros(table.num_outputs)
    for batch in batches:
        assert len(set(batch.outputs.tolist())) == len(batch.outputs) == len(batch.output_weight)
        assert np.array_equal(batch.x, table.X[batch.row])
        assert batch.cell_weight == len(plan)
        output_weight[batch.outputs] += batch.output_weight
    # The plain average over the epoch gives every output's own term the weight one.
    np.testing.assert_allclose(output_weight / len(plan), 1.0, rtol=1e-12)


@given(grids(), st.integers(1, 10), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_a_grid_plan_partitions_cells_and_outputs(table, batch_inputs, batch_outputs, seed):
    plan = GridPlan(table, identity(table), batch_inputs, batch_outputs)
    check_partition(plan, table, np.random.default_rng(seed))
    for batch in plan.epoch(np.random.default_rng(seed)):
        assert len(batch.outputs) <= batch_outputs
        assert len(set(batch.row.tolist())) <= batch_inputs


@given(tables, st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_cell_plan_partitions_cells_and_outputs(table, batch_cells, seed):
    plan = CellPlan(table, identity(table), batch_cells)
    check_partition(plan, table, np.random.default_rng(seed))
    sizes = [batch.num_cells for batch in plan.epoch(np.random.default_rng(seed))]
    assert max(sizes) <= batch_cells
    assert max(sizes) - min(sizes) <= 1


@given(grids(), st.integers(0, 2**32 - 1))
def test_estimates_of_an_epoch_average_to_the_full_bound(table, seed):
    rng = np.random.default_rng(seed)
    kl = rng.uniform(size=table.num_outputs)
    scaling = Scaling.fit(table)
    (whole,) = GridPlan(table, scaling).epoch(rng)
    full = (whole.y**2).sum() - kl.sum()
    for plan in (GridPlan(table, scaling, 2, 2), CellPlan(table, scaling, 3)):
        estimates = [
            batch.cell_weight * (batch.y**2).sum() - batch.output_weight @ kl[batch.outputs]
            for batch in plan.epoch(rng)
        ]
        np.testing.assert_allclose(np.mean(estimates), full, rtol=1e-9, atol=1e-9)


def test_grid_batches_keep_outputs_without_cells():
    table = Grid(np.zeros((2, 1)), np.array([[1.0, np.nan], [2.0, np.nan]]))
    (batch,) = GridPlan(table, identity(table)).epoch(np.random.default_rng(0))
    assert batch.outputs.tolist() == [0, 1]
    assert batch.column.tolist() == [0, 0]


def test_cell_batches_deal_out_outputs_without_cells():
    Y = np.full((8, 5), np.nan)
    Y[:, 0] = 1.0
    table = Grid(np.zeros((8, 1)), Y)
    batches = list(CellPlan(table, identity(table), 2).epoch(np.random.default_rng(0)))
    assert sorted(len(batch.outputs) for batch in batches) == [2, 2, 2, 2]


def test_batches_are_in_scaled_units():
    rng = np.random.default_rng(0)
    table = Grid(rng.normal(5.0, 3.0, (30, 2)), rng.normal(-7.0, 4.0, (30, 3)))
    for plan in (GridPlan(table, Scaling.fit(table)), CellPlan(table, Scaling.fit(table))):
        (batch,) = plan.epoch(rng)
        np.testing.assert_allclose([batch.y.mean(), batch.y.std()], [0.0, 1.0], atol=1e-12)
        np.testing.assert_allclose(batch.x.mean(axis=0), 0.0, atol=1e-12)


def test_the_same_seed_gives_the_same_epoch():
    table = Grid(np.arange(20.0)[:, None], np.arange(60.0).reshape(20, 3))
    for plan in (GridPlan(table, identity(table), 6, 2), CellPlan(table, identity(table), 7)):
        first, second = (list(plan.epoch(np.random.default_rng(4))) for _ in range(2))
        assert all(np.array_equal(a.y, b.y) for a, b in zip(first, second, strict=True))
        other = list(plan.epoch(np.random.default_rng(5)))
        assert not all(np.array_equal(a.y, b.y) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("size", [0, -3, 2.5, True, "8"])
def test_silly_batch_sizes_are_refused(size):
    table = Grid(np.zeros((2, 1)), np.ones((2, 2)))
    with pytest.raises(SettingError, match="batch_inputs"):
        GridPlan(table, identity(table), batch_inputs=size)
    with pytest.raises(SettingError, match="batch_cells"):
        CellPlan(table, identity(table), batch_cells=size)


def test_a_grid_plan_refuses_cells():
    table = Cells(np.zeros((1, 1)), np.array([0]), np.array([1.0]))
    with pytest.raises(DataError, match="use a CellPlan"):
        GridPlan(table, identity(table))


def test_a_cell_plan_refuses_an_empty_table():
    table = Grid(np.zeros((1, 1)), np.array([[np.nan]]))
    with pytest.raises(DataError, match="no observed cell"):
        CellPlan(table, identity(table))


def test_a_step_gathers_its_batch_only():
    class Counting(np.ndarray):
        """An array that remembers how many cells were taken out of it."""

        taken = 0

        def __getitem__(self, index):
            picked = np.asarray(super().__getitem__(index))
            Counting.taken += picked.size
            return picked

    Y = np.ones((1000, 50)).view(Counting)
    table = Grid(np.zeros((1000, 1)), Y)
    epoch = GridPlan(table, identity(table), 10, 5).epoch(np.random.default_rng(0))
    Counting.taken = 0
    next(epoch)
    assert Counting.taken == 50
