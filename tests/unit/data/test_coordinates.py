"""Tables that describe outputs, and coordinates on the plane and on the sphere."""

import numpy as np
import pandas as pd
import pytest

from manygp.data.coordinates import CoordinateMap, Coordinates, describe_outputs, place_outputs
from manygp.errors import DataError, SettingError

NAMES = ("a", "b", "c")


def test_a_frame_is_looked_up_by_name():
    frame = pd.DataFrame({"u": [1.0, 2.0, 3.0, 4.0]}, index=["c", "x", "a", "b"])
    assert describe_outputs(frame, NAMES, "table")[:, 0].tolist() == [3.0, 4.0, 1.0]
    assert describe_outputs(frame["u"], NAMES, "table")[:, 0].tolist() == [3.0, 4.0, 1.0]


def test_rows_without_names_come_in_order():
    assert describe_outputs(pd.DataFrame({"u": [1.0, 2.0, 3.0]}), NAMES, "table")[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert describe_outputs([[1], [2], [3]], NAMES, "table").shape == (3, 1)


def test_names_that_are_coordinates():
    values = describe_outputs("names", [(1.0, 2.0), (3.0, 4.0)], "table")
    assert values.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pd.DataFrame({"u": [1.0, 2.0]}, index=["a", "b"]), "no row for 'c'"),
        (pd.DataFrame({"u": [1.0, 2.0]}, index=["a", "a"]), "twice"),
        (np.ones((2, 2)), "table has 2 rows, but there are 3 outputs"),
        (np.full((3, 1), np.nan), "NaN"),
        (np.ones((3, 0)), "shape"),
        ("places", "no table of numbers"),
    ],
)
def test_tables_that_do_not_fit(given, message):
    with pytest.raises(DataError, match=message):
        describe_outputs(given, NAMES, "table")


def test_the_sphere_has_no_edge():
    """Either side of the date line is near, and so is everything around a pole."""
    S = np.array([[0.0, 179.0], [0.0, -179.0], [89.0, 0.0], [89.0, 180.0], [0.0, 0.0]])
    features = CoordinateMap.fit(S, "sphere").features(S)
    assert np.allclose(np.linalg.norm(features, axis=1), 1.0)
    distance = np.linalg.norm(features[:, None] - features[None], axis=-1)
    assert np.isclose(distance[0, 1], distance[2, 3])
    assert np.isclose(distance[0, 1], 2.0 * np.sin(np.radians(1.0)))


def test_columns_called_lat_and_lon_lie_on_the_sphere():
    frame = pd.DataFrame({"height": [1.0, 2.0, 3.0], "Longitude": [0.0, 10.0, 20.0], "lat": [50.0, 60.0, 70.0]})
    found = place_outputs(frame, NAMES, "auto")
    assert isinstance(found, Coordinates)
    assert found.map.sphere == (2, 1)
    assert found.features.shape == (3, 4)
    assert found.map.groups == [[0, 1], [2], [3]]
    assert place_outputs(frame, NAMES, "flat").features.shape == (3, 3)
    assert place_outputs(frame.to_numpy(), NAMES, "auto").map.sphere is None


def test_a_map_is_what_its_numbers_say():
    S = np.random.default_rng(0).uniform(-80.0, 80.0, (5, 3))
    for system in ("flat", "sphere"):
        found = CoordinateMap.fit(S, system)
        assert np.array_equal(CoordinateMap.from_numbers(found.numbers()).features(S), found.features(S))
        assert Coordinates(found.features(S), found).numbers() == found.numbers()


def test_coordinates_that_make_no_sense():
    S = np.ones((3, 2))
    with pytest.raises(DataError, match="2 columns, but the model was fitted with 1"):
        CoordinateMap.fit(S[:, :1], "flat").features(S)
    with pytest.raises(DataError, match="between -90 and 90"):
        CoordinateMap.fit(S, "sphere").features(np.array([[100.0, 0.0]]))
    with pytest.raises(SettingError, match="one column"):
        CoordinateMap.fit(S[:, :1], "sphere")


def test_no_rows_are_no_outputs():
    for given in (np.empty((0, 2)), pd.DataFrame(columns=["lat", "lon"], dtype=float)):
        with pytest.raises(DataError, match="output_coordinates has no rows"):
            describe_outputs(given, -1, "output_coordinates")
