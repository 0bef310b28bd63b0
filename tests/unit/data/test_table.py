import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manygp.data import Cells, Grid
from manygp.errors import DataError

from .tables import tables


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


# -- both layouts behind one interface ---------------------------------------------------------------------------------


@given(table=tables, chunk=st.integers(1, 7))
def test_chunks_are_all_cells_in_order(table, chunk):
    row, output, y = (np.concatenate(parts) for parts in zip(*table.chunks(chunk), strict=True))
    expected = table.cells(table.places())
    for a, b in zip((row, output, y), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    again = table.with_values(y)
    for a, b in zip(again.cells(again.places()), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.output_names == table.output_names


@given(table=tables, chunk=st.integers(1, 7))
def test_cells_by_outputs(table, chunk):
    row, output, y = table.cells(table.places())
    seen = 0
    for chosen, rows, outputs, values in table.output_chunks(chunk):
        for p in range(chosen.start, chosen.stop):
            mine = outputs + chosen.start == p
            own_row, own_y = table.column(p)
            for found in ((rows[mine], values[mine]), (row[output == p], y[output == p])):
                np.testing.assert_array_equal(np.sort(own_row), np.sort(found[0]))
                np.testing.assert_array_equal(np.sort(own_y), np.sort(found[1]))
        seen += chosen.stop - chosen.start
    assert seen == table.num_outputs


@given(table=tables, size=st.integers(1, 30), seed=st.integers(0, 5))
def test_a_sample_is_of_observed_cells(table, size, seed):
    sample = table.sample(size, np.random.default_rng(seed))
    every = set(zip(*(part.tolist() for part in table.cells(table.places())), strict=True))
    drawn = list(zip(*(part.tolist() for part in sample), strict=True))
    assert len(drawn) == len(set(drawn)) or isinstance(table, Cells)
    assert set(drawn) <= every
    assert len(drawn) <= size


@given(table=tables)
def test_sums_and_products_over_the_rows_of_outputs(table):
    row, output, y = table.cells(table.places())
    values = np.arange(2.0 * table.num_inputs).reshape(-1, 2)
    expected = np.zeros((table.num_outputs, 2))
    np.add.at(expected, output, values[row])
    np.testing.assert_allclose(table.sum_by_output(values), expected)
    center, scale = np.ones(table.num_outputs), np.full(table.num_outputs, 2.0)
    products = table.cross_products(center, scale)
    own = np.bincount(output, ((y - 1.0) / 2.0) ** 2, table.num_outputs)
    if isinstance(table, Grid):
        np.testing.assert_allclose(np.diag(products), own, rtol=1e-9)
    np.testing.assert_allclose(products, products.T)


@given(table=tables)
def test_some_rows(table):
    rows = np.arange(0, table.num_inputs, 2)
    part = table.take(rows)
    row, output, y = table.cells(table.places())
    kept = row % 2 == 0
    found = part.cells(part.places())
    np.testing.assert_array_equal(found[1], output[kept])
    np.testing.assert_array_equal(found[2], y[kept])
    np.testing.assert_array_equal(part.X, table.X[rows])


def test_layouts_that_are_asked_for(grid):
    assert grid.compact() is grid
    assert grid.to_grid() is grid
    assert grid.size == grid.num_inputs * grid.num_outputs
    assert Cells(grid.X[:2], np.array([0, 1]), np.ones(2)).size == 2
