"""Numbers that describe outputs: coordinates of stations, embeddings of genes, means of a prior."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.numbers import as_numbers, is_dataarray
from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError

COORDINATE_SYSTEMS = ("auto", "flat", "sphere")
_LATITUDES, _LONGITUDES = ("lat", "latitude"), ("lon", "long", "lng", "longitude")


def describe_outputs(given: Any, output_names: Sequence[Hashable] | int, name: str) -> FloatArray:
    """Return a table with a row of numbers for every output, shape (p, c); `name` is what an error calls it.

    Given are rows in the order of the outputs, or a data frame whose index holds output names, in any order and with
    others among them; "names" where output names are such rows themselves, as those of an xarray field. Outputs that
    have no names yet are a number.
    """
    names = None if isinstance(output_names, int) else list(output_names)
    count = output_names if isinstance(output_names, int) else len(output_names)
    if isinstance(given, str):
        if given != "names" or names is None:
            raise DataError(f"{name}={given!r} is no table of numbers; give a row for each output.")
        given = [label if isinstance(label, tuple) else (label,) for label in names]
    if isinstance(given, pd.Series):
        given = given.to_frame()
    if isinstance(given, pd.DataFrame) and names is not None:
        given = _in_order(given, names)
    values = np.ascontiguousarray(as_numbers(given, name))
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not values.shape[1]:
        raise DataError(f"{name} has shape {values.shape}; expected (outputs, columns), so give a row for each output.")
    if not len(values):
        raise DataError(f"{name} has no rows; give a row for each output.")
    if names is not None and len(values) != count:
        raise DataError(f"{name} has {len(values)} rows, but there are {count} outputs; give a row for each output.")
    if not np.isfinite(values).all():
        raise DataError(f"{name} contains NaN or infinity; every output needs finite numbers.")
    return values


def _in_order(frame: pd.DataFrame, names: list[Hashable]) -> pd.DataFrame:
    index = pd.Index(frame.index.tolist(), tupleize_cols=False)
    if not index.is_unique:
        raise DataError("A table of outputs names some of them twice; give every output one row.")
    found = index.get_indexer(pd.Index(names, tupleize_cols=False))
    if (found >= 0).all():
        return frame.iloc[found]
    if len(frame) == len(names) and isinstance(frame.index, pd.RangeIndex):
        # Rows without names of their own come in the order of the outputs.
        return frame
    missing = names[int(np.flatnonzero(found < 0)[0])]
    raise DataError(f"A table of outputs has no row for {missing!r}; give one for each of the {len(names)} outputs.")


def coordinates_of(field: Any, output_names: Sequence[Hashable]) -> pd.DataFrame:
    """Return where the outputs of a DataArray are by its own coordinates, a row for each output by name.

    Every dimension but the first is a coordinate; of a single one, the coordinates along it that are numbers, such as
    the latitudes and longitudes of stations.
    """
    if not is_dataarray(field) or field.ndim < 2:
        raise DataError(
            f'output_coordinates="coords" are those of a DataArray, and the values came as a {type(field).__name__}; '
            "give a frame with a row for each output."
        )
    index = pd.Index(list(output_names), dtype=object, tupleize_cols=False)
    if field.ndim > 2:
        return pd.DataFrame(list(output_names), index, columns=list(map(str, field.dims[1:])))
    dimension = field.dims[1]
    along = {str(name): field[name] for name in field.coords if field[name].dims == (dimension,)}
    numbers = {name: part.to_numpy() for name, part in along.items() if part.dtype.kind in "fiu"}
    others = {name: values for name, values in numbers.items() if name != dimension} or numbers
    if not others:
        raise DataError(
            f'output_coordinates="coords", but no coordinate along {dimension!r} holds numbers; assign some, such as '
            f"field.assign_coords(lat=({dimension!r}, ...), lon=({dimension!r}, ...))."
        )
    return pd.DataFrame(others, index)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Where outputs are: the features of every output, shape (p, f), and the map that made them."""

    features: FloatArray
    map: "CoordinateMap"

    def numbers(self) -> dict[str, Any]:
        """The map as plain numbers."""
        return self.map.numbers()


@dataclass(frozen=True, eq=False)
class CoordinateMap:
    """From coordinates as people have them to features whose distances mean something.

    On the sphere, latitude and longitude in degrees become a unit vector, so that the date line and the poles are
    places like any other; every further column, and every column of flat coordinates, is standardised.
    """

    #: Columns of latitude and longitude, or None.
    sphere: tuple[int, int] | None
    #: Of the other columns, in order.
    center: FloatArray
    scale: FloatArray

    @classmethod
    def fit(cls, coordinates: FloatArray, system: str, columns: Sequence[Hashable] | None = None) -> "CoordinateMap":
        """Learn the map from the coordinates of all outputs; "auto" looks for columns called lat and lon."""
        sphere = (0, 1) if system == "sphere" else None
        if columns is not None and system != "flat":
            labels = [str(column).lower() for column in columns]
            found = [next((i for i, label in enumerate(labels) if label in known), -1) for known in _POLAR]
            sphere = (found[0], found[1]) if min(found) >= 0 else sphere
        if sphere is not None and coordinates.shape[1] < 2:
            raise SettingError(
                "coordinate_system='sphere' needs latitude and longitude, but output_coordinates has one column: give "
                "both or use 'flat'."
            )
        rest = _others(coordinates, sphere)
        spread = rest.std(0)
        return cls(sphere, rest.mean(0), np.where(spread > 0, spread, 1.0))

    @property
    def num_columns(self) -> int:
        """Number of columns that coordinates have."""
        return len(self.center) + (0 if self.sphere is None else 2)

    @property
    def groups(self) -> list[list[int]]:
        """Features that share a lengthscale: those along the equator of a sphere, every other by itself.

        What happens on a sphere that turns often reaches farther east and west than north and south.
        """
        first = 0 if self.sphere is None else 3
        return ([[0, 1], [2]] if first else []) + [[first + i] for i in range(len(self.center))]

    def numbers(self) -> dict[str, Any]:
        """The map as plain numbers, for saving."""
        sphere = None if self.sphere is None else list(self.sphere)
        return {"sphere": sphere, "center": self.center.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_numbers(cls, numbers: dict[str, Any]) -> "CoordinateMap":
        """Rebuild a map from what `numbers` returned."""
        sphere = None if numbers["sphere"] is None else (int(numbers["sphere"][0]), int(numbers["sphere"][1]))
        center, scale = (np.asarray(numbers[name], dtype=np.float64) for name in ("center", "scale"))
        return cls(sphere, center, scale)

    def features(self, coordinates: FloatArray) -> FloatArray:
        """Return features of some coordinates, shape (p, c)."""
        if coordinates.shape[1] != self.num_columns:
            raise DataError(
                f"output_coordinates has {coordinates.shape[1]} columns, but the model was fitted with "
                f"{self.num_columns}; give the same ones."
            )
        rest = (_others(coordinates, self.sphere) - self.center) / self.scale
        if self.sphere is None:
            return rest
        latitude, longitude = np.radians(coordinates[:, list(self.sphere)]).T
        if np.abs(latitude).max(initial=0.0) > 0.5 * np.pi + 1e-9:
            raise DataError("Latitudes lie between -90 and 90 degrees, and these do not; check the order of columns.")
        unit = (np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude))
        return np.column_stack([*unit, rest])


_POLAR = (_LATITUDES, _LONGITUDES)


def place_outputs(given: Any, output_names: Sequence[Hashable], system: str) -> Coordinates:
    """Return where outputs are, from coordinates as `describe_outputs` takes them."""
    values = describe_outputs(given, output_names, "output_coordinates")
    found = CoordinateMap.fit(values, system, list(given.columns) if isinstance(given, pd.DataFrame) else None)
    return Coordinates(found.features(values), found)


def _others(coordinates: FloatArray, sphere: tuple[int, int] | None) -> FloatArray:
    return coordinates if sphere is None else np.delete(coordinates, list(sphere), axis=1)
