"""Tables in place of inputs and values, and masks that say which cells count."""

import numpy as np
import pandas as pd
import pytest

from manygp import TLVMOGP, DataError
from manygp.data import Grid, as_table, cells_table, random_split

from .conftest import TINY

RNG = np.random.default_rng(0)
X = np.linspace(0.0, 1.0, 12)[:, None]
Y = np.sin(5 * X + np.arange(3)) + 0.1 * RNG.normal(size=(12, 3))
NAMES = ["a", "b", "c"]


def tiny():
    return TLVMOGP(**TINY | {"num_inducing": 5, "epochs": 2})


def frames():
    return pd.DataFrame(X, columns=["day"]), pd.DataFrame(Y, columns=NAMES)


def cells():
    row, column = np.nonzero(RNG.uniform(size=Y.shape) < 0.5)
    return frames()[0].iloc[row].reset_index(drop=True), np.array(NAMES)[column], Y[row, column]


def test_both_parts_of_a_split():
    train, test = random_split(as_table(*frames()), 0.3, RNG)
    model, same = tiny().fit(train), tiny().fit(*frames(), mask=train.mask)
    assert model.output_names_ == tuple(NAMES)
    assert model.feature_names_in_.tolist() == ["day"]
    assert np.array_equal(model.predict(frames()[0]), same.predict(frames()[0]))
    held_out = np.where(test.mask, Y, np.nan)
    expected = model.evaluate(frames()[0], held_out)
    assert expected["num_cells"] == test.num_observed == 11
    assert model.evaluate(test) == expected
    assert model.evaluate(*frames(), mask=test.mask) == expected
    assert model.score(test) == model.score(frames()[0], held_out)
    # The tables stay those of the user.
    assert train.exposure is None
    assert train.coordinates is None


def test_a_list_of_cells():
    table = cells_table(*cells(), NAMES)
    model = tiny().fit(table)
    assert np.array_equal(model.predict(frames()[0]), tiny().fit(table.to_grid()).predict(frames()[0]))
    expected = model.predict_cells(*cells_of(table)).score(table.y)
    assert model.evaluate(table) == expected
    # Columns are matched by name, whatever their order, or as is said.
    turned = cells_table(*cells_of(table), table.y, NAMES[::-1])
    assert model.evaluate(turned) == expected
    renamed = cells_table(table_inputs(table), [name.upper() for name in cells_of(table)[1]], table.y, ["A", "B", "C"])
    assert model.evaluate(renamed, outputs=NAMES) == expected
    with pytest.raises(DataError, match="Y has a column 'A'"):
        model.evaluate(renamed)
    with pytest.raises(DataError, match="outputs names 2 outputs and the table has 3"):
        model.evaluate(renamed, outputs=["a", "b"])
    with pytest.raises(DataError, match="score takes a grid and got a list of cells"):
        model.score(table)


def table_inputs(table):
    return pd.DataFrame(table.X, columns=["day"])


def cells_of(table):
    return table_inputs(table), [NAMES[i] for i in table.output]


def test_a_table_that_was_put_together_by_hand_is_checked():
    with pytest.raises(DataError, match="X contains NaN or infinity"):
        tiny().fit(Grid(np.where(X > 0.5, np.nan, X), Y))
    with pytest.raises(DataError, match="no observed cell"):
        tiny().fit(Grid(X, Y, mask=np.zeros(Y.shape, dtype=bool)))


@pytest.mark.parametrize("other", [{"y": Y}, {"mask": Y > 0}, {"output_names": NAMES}, {"layer": "counts"}])
def test_what_a_table_has_is_not_given_twice(other):
    name = next(iter(other))
    with pytest.raises(DataError, match=f"X is a Grid, which holds all of the data, and {name} was given too"):
        tiny().fit(Grid(X, Y), **other)


def test_masks_that_do_not_fit():
    model = tiny().fit(X, Y)
    with pytest.raises(DataError, match=r"mask has shape \(12, 2\) and Y has \(12, 3\)"):
        model.evaluate(X, Y, mask=np.ones((12, 2), dtype=bool))
    with pytest.raises(DataError, match="no observed cell"):
        model.evaluate(X, Y, mask=np.zeros((12, 3), dtype=bool))
    # What is hidden may hold anything.
    spoilt = np.where(Y > 0, Y, np.inf)
    assert model.evaluate(X, spoilt, mask=Y > 0)["num_cells"] == (Y > 0).sum()
