import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from manygp.data import Cells, Grid, block_split, gap_split, output_split, pattern_split, random_split
from manygp.errors import DataError, SettingError

from .tables import grids, observed_cells, tables

SPLITS = {
    "random": lambda table, rng: random_split(table, 0.3, rng),
    "block": lambda table, rng: block_split(table, 0.5, 0.4, rng),
    "end": lambda table, rng: block_split(table, 0.5, 0.4, rng, start="end"),
    "output": lambda table, rng: output_split(table, 0.3, rng),
}


def valued(table):
    """Return cells that do not depend on row numbers, which a list of cells renumbers."""
    return sorted((*table.X[row], output, y) for row, output, y in observed_cells(table))


@pytest.mark.parametrize("split", SPLITS)
@given(table=tables, seed=st.integers(0, 2**32 - 1))
def test_the_parts_of_a_split_partition_the_observed_cells(split, table, seed):
    try:
        train, test = SPLITS[split](table, np.random.default_rng(seed))
    except DataError:
        assume(False)
    assert sorted(valued(train) + valued(test)) == valued(table)
    assert train.output_names == test.output_names == table.output_names
    assert train.num_observed > 0
    assert test.num_observed > 0


@pytest.fixture
def grid():
    rng = np.random.default_rng(0)
    return Grid(rng.permutation(np.arange(20.0))[:, None], rng.normal(size=(20, 10)))


@pytest.mark.parametrize("split", SPLITS)
def test_a_grid_is_split_without_copying_values(grid, split):
    for part in SPLITS[split](grid, np.random.default_rng(1)):
        assert part.Y is grid.Y
        assert part.X is grid.X


def test_a_random_split_holds_out_the_share_exactly(grid):
    train, test = random_split(grid, 0.25, np.random.default_rng(0))
    assert (train.num_observed, test.num_observed) == (150, 50)


@pytest.mark.parametrize("start", ["random", "end"])
def test_blocks_are_successive_inputs(grid, start):
    _, test = block_split(grid, 0.5, 0.3, np.random.default_rng(0), start=start)
    held = test.count_per_output()
    assert sorted(held.tolist()) == [0] * 5 + [6] * 5
    for p in np.flatnonzero(held):
        inputs = np.sort(grid.X[test.mask[:, p], 0])
        assert np.ptp(inputs) == 5
        if start == "end":
            assert inputs[-1] == 19


def test_blocks_of_cells_run_over_the_cells_of_each_output():
    X = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 0.0])[:, None]
    cells = Cells(X, np.array([0, 0, 0, 0, 1, 1]), np.arange(6.0), ["a", "b", "empty"])
    _, test = block_split(cells, 0.99, 0.5, np.random.default_rng(0), start="end")
    assert sorted(test.X[test.output == 0, 0].tolist()) == [4.0, 5.0]
    assert test.X[test.output == 1, 0].tolist() == [3.0]


def test_an_output_split_takes_whole_outputs(grid):
    train, test = output_split(grid, 0.2, np.random.default_rng(0))
    assert sorted(test.count_per_output().tolist()) == [0] * 8 + [20] * 2
    assert ((train.count_per_output() == 0) == (test.count_per_output() == 20)).all()


def test_splits_of_masked_grids_stay_under_the_mask(grid):
    masked = Grid(grid.X, grid.Y, mask=grid.Y > 0)
    train, test = random_split(masked, 0.5, np.random.default_rng(0))
    assert np.array_equal(train.mask | test.mask, masked.mask)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5])
def test_shares_outside_zero_and_one_are_refused(grid, fraction):
    rng = np.random.default_rng(0)
    with pytest.raises(SettingError, match="between 0 and 1"):
        random_split(grid, fraction, rng)
    with pytest.raises(SettingError, match="input_fraction"):
        block_split(grid, 0.5, fraction, rng)


def test_impossible_splits_are_refused(grid):
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="one part is empty"):
        random_split(Grid(np.zeros((1, 1)), np.ones((1, 1))), 0.5, rng)
    with pytest.raises(SettingError, match="start"):
        block_split(grid, 0.5, 0.5, rng, start="middle")


@given(table=grids(), seed=st.integers(0, 2**32 - 1))
def test_a_pattern_split_partitions_and_spares_half(table, seed):
    assume(table.num_observed > 1)
    train, test = pattern_split(table, np.random.default_rng(seed))
    assert sorted(valued(train) + valued(test)) == valued(table)
    assert train.Y is test.Y is table.Y


def test_a_table_with_lost_blocks_loses_further_blocks():
    Y = np.ones((30, 40))
    Y[10:20, :20] = np.nan
    table = Grid(np.arange(30.0)[:, None], Y)
    train, test = pattern_split(table, np.random.default_rng(0), share=0.05)
    # Only the complete outputs have anything to lose where the others have gaps.
    assert test.num_observed == 50
    assert test.mask[10:20].sum() == 50
    assert set(test.count_per_output()[20:].tolist()) <= {0, 10}
    assert (train.count_per_input() >= 3 * table.count_per_input() // 4).all()


def test_gaps_are_moved_together():
    Y = np.ones((60, 6))
    Y[10:20, :3] = np.nan  # three outputs are lost together
    Y[30:34, 3] = np.nan
    train, test = gap_split(Grid(np.arange(60.0)[:, None], Y), np.random.default_rng(0), share=0.5)
    held = test.mask
    assert not held[:, 4:].any()
    # As many cells as there are gaps, in places where they were observed, and the same for the three.
    assert 0.5 * 34 <= held.sum() <= 2 * 34
    assert not held[np.isnan(Y)].any()
    apart = ~np.isnan(Y[:, 0])
    assert held[apart, 0].any()
    assert (held[apart, 0] == held[apart, 1]).all()
    assert (train.mask == ~held).all()


@given(table=grids(), seed=st.integers(0, 2**32 - 1))
def test_a_gap_split_partitions(table, seed):
    assume(table.num_observed > 1 and table.num_features == 1)
    assume((table.count_per_input() > 0).all())
    train, test = gap_split(table, np.random.default_rng(seed), share=0.3)
    assert sorted(valued(train) + valued(test)) == valued(table)
    assert 0 < test.num_observed < table.num_observed


def test_very_rare_gaps_are_not_all_that_is_held_out():
    Y = np.ones((100, 10))
    Y[3, 3] = np.nan
    _, test = gap_split(Grid(np.arange(100.0)[:, None], Y), np.random.default_rng(0), share=0.2)
    assert 190 <= test.num_observed <= 210


def test_a_few_outputs_lose_one_block_at_a_time():
    Y = np.ones((30, 5))
    Y[20:, :2] = np.nan
    _, test = pattern_split(Grid(np.arange(30.0)[:, None], Y), np.random.default_rng(0))
    assert sorted(test.count_per_output().tolist()) == [0, 0, 0, 0, 10]
    assert test.mask[20:].sum() == 10


def test_a_table_with_scattered_gaps_loses_scattered_cells():
    rng = np.random.default_rng(0)
    Y = np.where(rng.uniform(size=(50, 40)) < 0.3, np.nan, 1.0)
    table = Grid(np.zeros((50, 1)), Y)
    train, test = pattern_split(table, rng, share=0.2)
    assert 0.15 < test.num_observed / table.num_observed < 0.3
    assert (train.count_per_output() >= table.count_per_output() // 2).all()


def test_a_complete_table_loses_cells_at_random():
    table = Grid(np.zeros((50, 4)), np.ones((50, 4)))
    _, test = pattern_split(table, np.random.default_rng(0), share=0.2)
    assert test.num_observed == 40
