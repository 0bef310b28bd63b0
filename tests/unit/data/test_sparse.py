"""A sparse grid is the dense one: the same observations, statistics and batches; only some rows at once are dense."""

import numpy as np
import pytest
from scipy import sparse

from manygp.data import Grid, GridPlan, Scaling, as_table, factorise, random_split
from manygp.data.exposure import size_factors
from manygp.errors import DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = RNG.poisson(0.7, size=(20, 9)).astype(np.int32)
MASK = RNG.random(Y.shape) < 0.8
FORMATS = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix, "coo": sparse.coo_array, "csr array": sparse.csr_array}


def both(mask=None):
    return as_table(X, sparse.csr_matrix(Y), mask), as_table(X, Y, mask)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_holds_the_same_cells(kind):
    table = as_table(X, FORMATS[kind](Y))
    assert sparse.issparse(table.Y)
    np.testing.assert_array_equal(table.values(slice(0, 20)), Y)
    assert table.num_observed == Y.size


@pytest.mark.parametrize("mask", [None, MASK])
def test_statistics_and_cells_are_those_of_the_dense_grid(mask):
    thin, full = both(mask)
    center = np.arange(9.0)
    np.testing.assert_array_equal(thin.power_sums(2, center), full.power_sums(2, center))
    np.testing.assert_array_equal(thin.count_per_input(), full.count_per_input())
    np.testing.assert_array_equal(thin.count_per_output(), full.count_per_output())
    np.testing.assert_array_equal(thin.places(), full.places())
    for a, b in zip(thin.cells(thin.places()), full.cells(full.places()), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(size_factors(thin), size_factors(full))
    rows, outputs = np.array([3, 1, 7]), np.array([8, 0])
    np.testing.assert_array_equal(thin.block(rows, outputs), full.block(rows, outputs))


def test_batches_samples_splits_and_factors_are_those_of_the_dense_grid():
    thin, full = both(MASK)
    scaling = Scaling.fit(full, outputs="none")
    for a, b in zip(
        *(GridPlan(table, scaling, 6, 4).epoch(np.random.default_rng(1)) for table in (thin, full)), strict=True
    ):
        np.testing.assert_array_equal(a.y, b.y)
        np.testing.assert_array_equal(a.column, b.column)
    for a, b in zip(*(table.sample(30, np.random.default_rng(2)) for table in (thin, full)), strict=True):
        np.testing.assert_array_equal(a, b)
    train, test = random_split(thin, 0.3, np.random.default_rng(3))
    assert train.num_observed + test.num_observed == thin.num_observed
    fits = [factorise(table, scaling, 2) for table in (thin, full)]
    np.testing.assert_allclose(fits[0].loadings, fits[1].loadings)


def test_values_stored_twice_are_added_up_in_a_copy():
    twice = sparse.csr_matrix((np.array([1.0, 2.0, 5.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    table = as_table(X[:2], twice)
    np.testing.assert_array_equal(table.values(slice(0, 2)), [[3.0, 0.0], [0.0, 5.0]])
    assert twice.nnz == 3


def test_a_stored_nan_is_missing_and_infinity_refused():
    values = Y.astype(float)
    values[2, 3] = np.nan
    assert as_table(X, sparse.csr_matrix(values)).num_observed == Y.size - 1
    values[2, 3] = np.inf
    with pytest.raises(DataError, match="Y contains infinity"):
        as_table(X, sparse.csr_matrix(values))


def test_what_cannot_be_values():
    with pytest.raises(DataError, match="sparse matrix of dtype complex128"):
        as_table(X, sparse.csr_matrix(Y.astype(complex)))
    with pytest.raises(DataError, match="X has 20 rows and Y has 5"):
        Grid(X, sparse.csr_array(Y[:5]))


def outside(kind):
    """A sparse matrix with an entry outside of its shape."""
    matrix = FORMATS[kind](Y)
    if kind == "coo":
        matrix.coords[1][3] = 10**6
    else:
        matrix.indices[3] = 10**6
    return matrix


@pytest.mark.parametrize("kind", FORMATS)
def test_entries_outside_of_a_matrix_are_refused(kind):
    # These would read and write memory that is not theirs.
    with pytest.raises(DataError, match="Y is a sparse matrix that contradicts itself"):
        as_table(X, outside(kind))
    with pytest.raises(DataError, match="The mask is a sparse matrix that contradicts itself"):
        as_table(X, Y, mask=outside(kind))


@pytest.mark.parametrize("pointer", [[0, 9, 3], [0, 1, 10**9], [5, 6, 7], [0, -4, 3]])
def test_rows_outside_of_the_data_are_refused(pointer):
    matrix = sparse.csr_array(np.eye(3))[:2]
    matrix.indptr = np.array(pointer, dtype=np.int32)
    with pytest.raises(DataError, match="contradicts itself"):
        as_table(X[:2], matrix)


def test_lists_of_rows_outside_of_a_matrix_are_refused():
    matrix = sparse.lil_array(Y)
    matrix.rows[0][0] = -50
    with pytest.raises(DataError, match="contradicts itself"):
        as_table(X, matrix)


def test_a_sparse_mask_is_a_mask():
    thin = as_table(X, Y, mask=sparse.csr_array(MASK))
    np.testing.assert_array_equal(thin.mask, MASK)


def test_a_sparse_vector_is_one_output():
    table = as_table(X, sparse.coo_array(Y[:, 0]))
    np.testing.assert_array_equal(table.values(slice(0, 20)), Y[:, :1])
