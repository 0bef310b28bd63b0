import numpy as np
import pytest

from manygp.data import Cells, Grid
from manygp.errors import DataError


@pytest.fixture
def grid():
    Y = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])
    return Grid(np.array([[0.0], [1.0]]), Y, ["a", "b", "c"])


def test_counts_leave_out_gaps(grid):
    assert grid.num_observed == 4
    assert grid.count_per_output().tolist() == [2, 1, 1]
    assert grid.count_per_input().tolist() == [2, 2]


def test_a_cell_is_observed_under_the_mask_and_not_nan(grid):
    masked = Grid(grid.X, grid.Y, mask=np.array([[True, True, False], [False, True, True]]))
    assert masked.count_per_output().tolist() == [1, 1, 0]
    assert np.array_equal(
        masked.block(np.arange(2), np.arange(3)),
        [[1.0, np.nan, np.nan], [np.nan, 5.0, np.nan]],
        equal_nan=True,
    )


def test_values_and_mask_are_kept_by_reference(grid):
    mask = np.ones(grid.Y.shape, dtype=bool)
    masked = Grid(grid.X, grid.Y, mask=mask)
    assert masked.Y is grid.Y
    assert masked.mask is mask


def test_a_block_is_a_copy(grid):
    grid.block(np.array([0]), np.array([0]))[:] = -1.0
    assert grid.Y[0, 0] == 1.0


def test_row_chunks_cover_every_row_once(grid):
    tall = Grid(np.zeros((7, 1)), np.ones((7, 2)))
    covered = np.concatenate([np.arange(7)[rows] for rows in tall.row_chunks(max_cells=6)])
    assert covered.tolist() == list(range(7))
    assert [rows.stop - rows.start for rows in tall.row_chunks(max_cells=6)] == [3, 3, 1]


def test_wrong_shapes_are_refused(grid):
    with pytest.raises(DataError, match="3 rows and Y has 2"):
        Grid(np.zeros((3, 1)), grid.Y)
    with pytest.raises(DataError, match="mask has shape"):
        Grid(grid.X, grid.Y, mask=np.ones((2, 2), dtype=bool))
    with pytest.raises(DataError, match=r"X has shape \(2,\)"):
        Grid(np.zeros(2), grid.Y)
    with pytest.raises(DataError, match=r"Y has shape \(2,\)"):
        Grid(grid.X, np.zeros(2))


def test_cells_count_outputs_without_cells():
    cells = Cells(np.zeros((3, 2)), np.array([2, 0, 2]), np.array([1.0, 2.0, 3.0]), ["a", "b", "c", "d"])
    assert cells.num_outputs == 4
    assert cells.num_observed == 3
    assert cells.count_per_output().tolist() == [1, 0, 2, 0]
    assert cells.power_sums(2, np.ones(4)).tolist() == [1.0, 0.0, 4.0, 0.0]


@pytest.mark.parametrize("output", [[0, 1, 5], [0, -1, 1]])
def test_cells_of_outputs_out_of_range_are_refused(output):
    with pytest.raises(DataError, match="positions from 0 to 1"):
        Cells(np.zeros((3, 1)), np.array(output), np.zeros(3), ["a", "b"])


def test_cells_of_unequal_lengths_are_refused():
    with pytest.raises(DataError, match="3 inputs, 2 outputs and 3 values"):
        Cells(np.zeros((3, 1)), np.array([0, 1]), np.zeros(3))


def test_cells_become_a_grid_where_inputs_coincide():
    X = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    grid = Cells(X, np.array([0, 1, 1]), np.array([10.0, 20.0, 30.0]), ["a", "b"]).to_grid()
    assert grid.X.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert np.array_equal(grid.Y, [[np.nan, 20.0], [10.0, 30.0]], equal_nan=True)
    assert grid.output_names == ("a", "b")


def test_repeated_cells_do_not_become_a_grid():
    with pytest.raises(DataError, match="several values at one input"):
        Cells(np.zeros((2, 1)), np.array([0, 0]), np.array([1.0, 2.0])).to_grid()


def test_cells_are_compacted_where_a_grid_is_small_enough():
    row, output = np.divmod(np.arange(12), 3)
    shared = Cells(row[:, None].astype(float), output, np.arange(12.0))
    assert isinstance(shared.compact(), Grid)
    scattered = Cells(np.arange(12.0)[:, None], np.arange(12), np.arange(12.0))
    assert scattered.compact() is scattered
    repeated = Cells(np.zeros((2, 1)), np.array([0, 0]), np.array([1.0, 2.0]))
    assert repeated.compact() is repeated
