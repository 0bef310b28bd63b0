import datetime

import numpy as np
import pandas as pd
import pytest

from manygp.data.names import checked_names, find_outputs, given_names
from manygp.errors import DataError

NAMES = ("a", "b", "c")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("b", [1]), (["c", "a"], [2, 0]), (2, [2]), (["a", 1], [0, 1]), (None, [0, 1, 2]), (np.array([1, 2]), [1, 2])],
)
def test_outputs_are_looked_up_by_name_then_by_position(asked, expected):
    assert find_outputs(NAMES, asked).tolist() == expected


def test_an_integer_name_wins_over_a_position():
    assert find_outputs((1, 0), [1, 0]).tolist() == [0, 1]


def test_numbers_as_names_leave_no_room_for_positions():
    assert find_outputs((5, 1, 3), [3, 5]).tolist() == [2, 0]
    for names, asked in (((5, 1, 3), 0), (("a", 7, "c"), 0), ((np.int64(4), np.int64(5)), 1), ((2.0, 1.0), 0)):
        with pytest.raises(DataError, match=f"Output {asked} is unknown.*positions are not taken where names are num"):
            find_outputs(names, asked)
    # A number that is its own position means the same output either way.
    assert find_outputs(("a", "b", 2), [0, 2]).tolist() == [0, 2]


def test_a_tuple_that_is_a_name_is_one_output():
    names = ((50.0, 1), (50.0, 2))
    assert find_outputs(names, (50.0, 2)).tolist() == [1]
    assert find_outputs(names, [(50.0, 2), (50.0, 1)]).tolist() == [1, 0]


@pytest.mark.parametrize("asked", ["z", ["a", "z"], 3, -1, True, [[0]], 0.5])
def test_an_unknown_output_is_refused_with_a_few_known_names(asked):
    with pytest.raises(DataError, match="'a', 'b', 'c'"):
        find_outputs(NAMES, asked)


@pytest.mark.parametrize("mask", [[True, False, True], np.array([True, False, True]), True])
def test_a_mask_is_not_taken_for_the_outputs_zero_and_one(mask):
    with pytest.raises(DataError, match=r"Output .*True.* is unknown"):
        find_outputs((0, 1, 2), mask)
    assert find_outputs((False, True), [True, False]).tolist() == [1, 0]


def test_dates_are_names_as_text():
    days = pd.date_range("2020-01-01", periods=2)
    names = checked_names(days, 2)
    assert names == ("2020-01-01 00:00:00", "2020-01-02 00:00:00")
    assert find_outputs(names, days[1]).tolist() == find_outputs(names, [names[1]]).tolist() == [1]
    nested = [("site", datetime.date(2020, 1, 1)), ("site", pd.Period("2020-02", "M"))]
    assert given_names(nested) == (("site", "2020-01-01"), ("site", "2020-02"))


def test_names_that_no_file_can_hold_are_names_as_text():
    given = [b"gene", 1j, pd.Interval(0, 1), np.int64(3), ("site", b"x")]
    names = checked_names(given, 5)
    assert names == ("gene", "1j", "(0, 1]", 3, ("site", "x"))
    assert type(names[3]) is int
    assert find_outputs(names, given).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("asked", "expected"), [(np.array(1), 1), (np.array("c"), 2)])
def test_an_array_without_dimensions_is_one_output(asked, expected):
    assert find_outputs(("a", "b", "c"), asked).tolist() == [expected]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a", "a", "b"], "'a' occurs more than once"),
        (["a", "b"], "2 output names and 3 outputs"),
        ([["a"], "b", "c"], r"\['a'\] cannot be looked up"),
        (["a", "b", np.nan], "nan cannot be looked up"),
        (["a", "b", pd.NA], "<NA> cannot be looked up"),
        (["a", "b", pd.NaT], "NaT cannot be looked up"),
        (["a", "b", ("c", np.inf)], r"\('c', inf\) cannot be looked up"),
        (3, "output_names=3 is no list of names"),
        ("abc", "output_names='abc' is no list of names"),
        (np.array("abc"), "is no list of names"),
    ],
)
def test_bad_output_names_are_refused(names, says):
    with pytest.raises(DataError, match=says):
        checked_names(names, 3)
