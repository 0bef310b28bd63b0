"""Readers of the data sets with real values: EEG, robot arm, and temperatures on land and sea."""

from pathlib import Path

import numpy as np

from manygp.data import Grid, Scaling, random_split
from manygp.data.climate import make_climate
from manygp.data.sources import read_table
from manygp.data.table import BoolArray, FloatArray
from manygp.errors import DataError
from manygp.extras import need
from manygp.paper.problem import Problem

# The channels of the file in its order; those whose end is held out are F1, F2 and FZ.
_ELECTRODES = ("F1", "F2", "F3", "F4", "F5", "F6", "FZ")
_NUM_JOINTS, _NUM_STATES = 7, 21
_TORQUES = tuple(f"torque {j + 1}" for j in range(_NUM_JOINTS))
_PARTS = ("train", "test")
_MONTHS = 24
# September 2018 to August 2020, in days since 1800, the origin of the file.
_ERSST_FIRST_DAY = 79866.0


def load_eeg(path: Path) -> Problem:
    """Voltages of seven electrodes over a second, of which three lack their last 100 of 256 steps; a fixed split."""
    train, test = (_named(_read(path, part), _ELECTRODES) for part in _PARTS)
    return Problem(train, test, unit="standard deviations", input_label="time, scaled to −1 … 1")


def load_era5(path: Path) -> Problem:
    """Monthly temperatures at 3,395 places in the United Kingdom. The source fixes the split and the scale."""
    train, test = _read(path, "train"), _read(path, "test")
    with need("h5py", "files", "This data set").File(path) as file:
        places = np.asarray(file["spatial_coords/all_spatial_coords"], dtype=np.float64)
    return Problem(
        train,
        test,
        places=places,
        coordinates=_standardised(places),
        unit="standard deviations",
        input_label="month, June 2023 to November 2025, scaled to −1 … 1",
    )


def load_sarcos(paths: list[Path], seed: int) -> Problem:
    """Seven torques of a robot arm in 21-dimensional states; a random half of all cells is held out.

    Inputs and torques are standardised, torques by the cells that are learnt from.
    """
    rows = np.concatenate([_read_mat(path) for path in paths]).astype(np.float64)
    X, Y = rows[:, :_NUM_STATES], rows[:, _NUM_STATES:]
    table = Grid(_standardised(X), np.ascontiguousarray(Y), _TORQUES)
    # Of an odd number of cells, the larger half is learnt from, as published.
    test, train = random_split(table, 0.5, np.random.default_rng(seed))
    assert isinstance(train, Grid)
    assert isinstance(test, Grid)
    scaling = Scaling.fit(train, inputs=False, outputs="output")
    scaled = (table.Y - scaling.y_center) / scaling.y_scale
    learnt, held_out = (Grid(table.X, scaled, _TORQUES, mask=part.mask) for part in (train, test))
    return Problem(learnt, held_out, unit="standard deviations", input_label="state of the arm")


def load_sarcos_published(path: Path) -> Problem:
    """The arm with the authors' own split and scale."""
    train, test = (_named(_read(path, part), _TORQUES) for part in _PARTS)
    return Problem(train, test, unit="standard deviations", input_label="state of the arm")


def load_ersst(path: Path, seed: int) -> Problem:
    """Sea surface temperatures of 24 months, September 2018 to August 2020; a random half of the cells is unseen."""
    with need("netCDF4", "xarray", "This data set").Dataset(path) as file:
        time, north, east = (np.asarray(file[name][:], dtype=np.float64) for name in ("time", "lat", "lon"))
        first = int(np.searchsorted(time, _ERSST_FIRST_DAY))
        sst = np.ma.filled(file["sst"][first : first + _MONTHS], np.nan).astype(np.float64)
    if len(sst) < _MONTHS:
        raise DataError(f"{path} ends before August 2020; give a file that holds the 24 months from September 2018.")
    return _unseen_cells(sst, north, (east + 180.0) % 360.0 - 180.0, seed, "month, from September 2018")


def load_copernicus(path: Path) -> Problem:
    """Sea water temperatures around the United Kingdom over 24 months; the source fixes unseen places and scale.

    It tells coordinates in units of their spread, and no degrees.
    """
    train, test = _read(path, "train"), _read(path, "test")
    with need("h5py", "files", "This data set").File(path) as file:
        here, there = (np.asarray(file[f"cm_oe_spatial_coords/{part}_sc"], dtype=np.float64) for part in _PARTS)
        stats = [np.asarray(file[f"stats/{name}"]) for name in ("mean", "std") if f"stats/{name}" in file]
    for part, places in ((train, here), (test, there)):
        if places.shape != (part.num_outputs, 2):
            raise DataError(
                f"{path} has coordinates of shape {places.shape} for {part.num_outputs} outputs; expected two numbers "
                "for each, so download it again."
            )
    known = len(stats) == 2 and stats[0].size == stats[1].size == 1
    center, scale = (float(part.reshape(-1)[0]) for part in stats) if known else (0.0, 1.0)
    return Problem(
        _named(train, tuple(f"place {i + 1}" for i in range(train.num_outputs))),
        _named(test, tuple(f"new place {i + 1}" for i in range(test.num_outputs))),
        places=here,
        coordinates=here,
        new_places=there,
        new_coordinates=there,
        is_globe=False,
        unit="°C" if known else "standard deviations",
        center=center,
        scale=scale,
        input_label="month, from November 2023",
    )


def load_climate_demo(seed: int) -> Problem:
    """The table of `manygp demo`: 2,000 generated stations over 36 months with 30% of the cells missing."""
    stations = make_climate(random_state=seed)
    names = stations.output_names
    train = Grid(stations.X, stations.complete, names, mask=~stations.missing)
    test = Grid(stations.X, stations.complete, names, mask=stations.missing)
    places = np.column_stack([stations.latitude, stations.longitude])
    return Problem(
        train,
        test,
        places=places,
        coordinates=_standardised(places),
        unit="°C",
        input_label="months since the first January",
    )


def _unseen_cells(field: FloatArray, north: FloatArray, east: FloatArray, seed: int, label: str) -> Problem:
    """Hold out half of the cells of a field (time, north, east); those with gaps, such as land, are left out."""
    values = field.reshape(len(field), -1)
    places = np.stack(np.meshgrid(north, east, indexing="ij"), axis=-1).reshape(-1, 2)
    sea = np.isfinite(values).all(axis=0)
    values, places = values[:, sea], places[sea]
    held: BoolArray = np.zeros(len(places), dtype=np.bool_)
    held[np.random.default_rng(seed).choice(len(places), len(places) // 2, replace=False)] = True
    center, scale = float(values[:, ~held].mean()), float(values[:, ~held].std())
    scaled = (values - center) / scale
    coordinates = (places - places[~held].mean(axis=0)) / places[~held].std(axis=0)
    X = np.linspace(-1.0, 1.0, len(field))[:, None]
    train, test = (Grid(X, np.ascontiguousarray(scaled[:, part]), _names(places[part])) for part in (~held, held))
    return Problem(
        train,
        test,
        places=places[~held],
        coordinates=coordinates[~held],
        new_places=places[held],
        new_coordinates=coordinates[held],
        unit="°C",
        center=center,
        scale=scale,
        input_label=label,
    )


def _names(places: FloatArray) -> tuple[str, ...]:
    return tuple(f"{north:.2f}N {east:.2f}E" for north, east in places)


def _named(table: Grid, names: tuple[str, ...]) -> Grid:
    return Grid(table.X, table.Y, names, mask=table.mask)


def _standardised(values: FloatArray) -> FloatArray:
    return (values - values.mean(axis=0)) / values.std(axis=0)


def _read(path: Path, part: str) -> Grid:
    table = read_table(path, part=part)
    assert isinstance(table, Grid)
    return table


def _read_mat(path: Path) -> FloatArray:
    from scipy.io import loadmat

    try:
        content = loadmat(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a MATLAB file; check that it is what its name says.") from error
    arrays = [value for name, value in content.items() if not name.startswith("__")]
    if len(arrays) != 1 or arrays[0].ndim != 2 or arrays[0].shape[1] != _NUM_STATES + _NUM_JOINTS:
        raise DataError(f"{path} holds no single array of 28 columns; expected 21 inputs and 7 torques a row.")
    return np.asarray(arrays[0], dtype=np.float64)
