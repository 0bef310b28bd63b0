"""Known standard deviations in any of the forms that users have them in."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from manygp import DataError
from manygp.data import as_table
from manygp.data.exposure import as_y_std, observed_y_std
from manygp.data.splits import random_split

NAMES = ["a", "b", "c"]
Y = pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=NAMES, index=pd.Index([0.0, 1.5, 2.0, 4.0], name="t"))
OF_OUTPUTS, OF_INPUTS = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0, 4.0])
CELLS = OF_INPUTS[:, None] * OF_OUTPUTS


@pytest.fixture
def table():
    return as_table(Y)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0.5, 0.5),
        (OF_OUTPUTS, OF_OUTPUTS),
        ({"c": 0.3, "a": 0.1, "b": 0.2}, OF_OUTPUTS),
        (pd.Series(OF_OUTPUTS, NAMES), OF_OUTPUTS),
        (OF_INPUTS, OF_INPUTS[:, None]),
        (OF_INPUTS[:, None], OF_INPUTS[:, None]),
        (OF_OUTPUTS[None], OF_OUTPUTS),
        (CELLS, CELLS),
        (CELLS.tolist(), CELLS),
        (pd.DataFrame(CELLS, Y.index, NAMES)[["c", "a", "b"]], CELLS),
        (xr.DataArray(CELLS, dims=("t", "place"), coords={"t": Y.index, "place": NAMES}), CELLS),
    ],
)
def test_every_form_means_what_it_says(table, given, expected):
    table.y_std = as_y_std(given, table, Y)
    row, output, _ = table.cells(table.places())
    np.testing.assert_allclose(table.known_variance(row, output), (np.broadcast_to(expected, (4, 3)) ** 2).reshape(-1))


def test_parts_of_a_table_keep_it(table):
    table.y_std = CELLS
    for part in (*random_split(table, 0.3, np.random.default_rng(0)), table.take(np.array([1, 3]))):
        row, output, _ = part.cells(part.places())
        at = np.searchsorted(table.X[:, 0], part.X[row, 0])
        np.testing.assert_allclose(part.known_variance(row, output), CELLS[at, output] ** 2)


def test_another_noise_is_another_table(table):
    plain = table.digest()
    table.y_std = CELLS
    assert table.digest() != plain


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (-1.0, "y_std holds -1"),
        (np.where(CELLS[1, 1] == CELLS, np.nan, CELLS), "y_std holds nan"),
        (np.ones(5), "y_std has shape"),
        (np.ones((4, 2)), "y_std has shape"),
        (np.ones((2, 2, 2)), "y_std has shape"),
        (pd.DataFrame(CELLS, Y.index[::-1], NAMES), "y_std"),
    ],
)
def test_what_makes_no_sense_is_refused(table, given, text):
    with pytest.raises(DataError, match=text):
        as_y_std(given, table, Y)


def test_as_many_inputs_as_outputs_need_a_shape():
    square = as_table(np.arange(3.0)[:, None], np.eye(3))
    with pytest.raises(DataError, match=r"\(3, 1\)"):
        as_y_std(np.ones(3), square)


def test_unknown_errors_of_missing_cells_are_no_matter(table):
    values = Y.to_numpy().copy()
    values[1, 2] = np.nan
    held = as_table(Y.index.to_numpy()[:, None], values)
    as_y_std(np.where(np.isnan(values), np.nan, CELLS), held)


def test_cells_without_a_value_have_none():
    np.testing.assert_allclose(observed_y_std([1.0, 2.0, 3.0], [0.0, np.nan, 5.0]), [1.0, 3.0])
    with pytest.raises(DataError, match="one number for each"):
        observed_y_std([1.0, 2.0], [0.0, 1.0, 2.0])
