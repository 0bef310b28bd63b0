import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from manygp.data import Cells, Grid, read_inputs, read_table, write_frame
from manygp.errors import DataError

FRAME = pd.DataFrame({"t": [0.0, 1.0, 2.0], "a": [1.0, np.nan, 3.0], "b": [np.nan, 0.1, 0.2]})
LONG = pd.DataFrame({"t": [0.0, 1.0, 0.5], "site": ["b", "a", "b"], "z": [1.0, 2.0, 3.0]})


def same(table, X, Y, names):
    assert np.array_equal(table.X, X)
    assert np.array_equal(table.block(np.arange(len(X)), np.arange(len(names))), Y, equal_nan=True)
    assert table.output_names == tuple(names)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_frames_are_written_and_read_back(tmp_path, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"new folder/table.{suffix}"
    write_frame(path, FRAME)
    same(read_table(path), FRAME[["t"]].to_numpy(), FRAME[["a", "b"]].to_numpy(), ["a", "b"])
    table = read_table(path)
    assert table.feature_names == ("t",)
    pd.testing.assert_frame_equal(read_inputs(path), FRAME)
    assert os.listdir(path.parent) == [path.name]


def test_input_columns_can_be_chosen(tmp_path):
    path = tmp_path / "table.csv"
    pd.DataFrame({"a": [1.0, 2.0], "x": [3.0, 4.0], "y": [5.0, 6.0]}).to_csv(path, index=False)
    table = read_table(path, x=["y", "x"])
    assert table.X.tolist() == [[5.0, 3.0], [6.0, 4.0]]
    assert table.output_names == ("a",)


def test_one_row_per_cell(tmp_path):
    path = tmp_path / "cells.csv"
    write_frame(path, LONG)
    table = read_table(path, output_column="site", y=["z"])
    assert isinstance(table, Cells)
    assert table.output_names == ("a", "b")
    assert table.output.tolist() == [1, 0, 1]
    assert table.feature_names == ("t",)


def test_dates_in_text_become_days(tmp_path):
    path = tmp_path / "dated.csv"
    path.write_text("when,a\n1970-01-02,1.5\n1970-01-03,\n")
    assert read_table(path).X.tolist() == [[1.0], [2.0]]
    path.write_text("when,a\n1970-01-02T01:00+01:00,1.5\n1970-01-03T02:00+02:00,2.5\n")
    assert read_table(path).X.tolist() == [[1.0], [2.0]]


def test_npz_grids_cells_and_inputs(tmp_path):
    path = tmp_path / "table.npz"
    X, Y = np.arange(6.0).reshape(3, 2), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    np.savez(path, X=X, Y=Y, mask=Y > 2, output_names=np.array(["u", "v"]), feature_names=np.array(["p", "q"]))
    table = read_table(path)
    same(table, X, np.where(Y > 2, Y, np.nan), ["u", "v"])
    assert table.feature_names == ("p", "q")
    assert read_inputs(path).columns.tolist() == ["p", "q"]
    np.savez(path, x=X, outputs=np.array([4, 2, 4]), y=Y[:, 0])
    assert read_table(path).output_names == (2, 4)
    assert read_inputs(path).columns.tolist() == ["x0", "x1"]


def test_npz_frames_need_no_pickle(tmp_path):
    path = tmp_path / "frame.npz"
    write_frame(path, LONG)
    with np.load(path, allow_pickle=False) as file:
        assert file["site"].tolist() == ["b", "a", "b"]
        assert file["z"].tolist() == [1.0, 2.0, 3.0]


def test_hdf5_parts(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "table.h5"
    mask = np.array([[True, False], [True, True]])
    with h5py.File(path, "w") as file:
        file["all_X"] = np.array([[0.0], [1.0]])
        for part, seen in (("train", mask), ("test", ~mask)):
            file[f"{part}/{part}_Y"] = np.where(seen, 7.0, 0.0).astype(np.float32)
            file[f"{part}/{part}_mask"] = seen
    assert read_table(path).num_observed == 3
    assert read_table(path, part="test").num_observed == 1
    assert read_inputs(path).to_numpy().tolist() == [[0.0], [1.0]]
    with pytest.raises(DataError, match="part"):
        read_table(path, part="valid")
    with h5py.File(path, "a") as file:
        del file["test"]
    with pytest.raises(DataError, match="test/test_Y"):
        read_table(path, part="test")


def test_the_eeg_file_is_read():
    pytest.importorskip("h5py")
    folder = os.environ.get("MANYGP_DATA")
    if folder is None or not (Path(folder) / "eeg.h5").exists():
        pytest.skip("MANYGP_DATA does not name a folder that holds eeg.h5")
    train, test = (read_table(Path(folder) / "eeg.h5", part=part) for part in ("train", "test"))
    assert isinstance(train, Grid)
    assert (train.num_observed, test.num_observed) == (1492, 300)
    assert (train.num_inputs, train.num_outputs) == (256, 7)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("table.txt", b"a", "ending '.txt' is unknown"),
        ("table.csv", b"", "cannot be read as a table"),
        ("table.csv", b"\xff\xfe\x00a", "cannot be read as a table"),
        ("table.csv", b"t\n1\n", "no column beside"),
        ("table.csv", b"t,a\n1,x\n", "column 'a'"),
        ("table.npz", b"nonsense", "NPZ"),
        ("table.npz", b"PK\x03\x04 cut short", "NPZ"),
        (
            "table.npz",
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (), }".ljust(127)
            + b"\n"
            + bytes(8),
            "NPZ",
        ),
        ("table.parquet", b"nonsense", "cannot be read as a table"),
        ("table.h5", b"nonsense", "HDF5"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_missing_files_and_columns_are_refused(tmp_path):
    with pytest.raises(DataError, match="not a file"):
        read_table(tmp_path / "absent.csv")
    path = tmp_path / "table.csv"
    write_frame(path, LONG)
    with pytest.raises(DataError, match="no column 'u'; it has t, site, z"):
        read_table(path, x=["u"])
    with pytest.raises(DataError, match="name that of the values too"):
        read_table(path, output_column="site")
    np.savez(tmp_path / "table.npz", Z=np.ones(3))
    with pytest.raises(DataError, match="arrays Z"):
        read_table(tmp_path / "table.npz")
    with pytest.raises(DataError, match="no array X"):
        read_inputs(tmp_path / "table.npz")


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    write_frame(path, FRAME)
    before = path.read_bytes()

    def full(self, to, **kwargs):
        Path(to).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(DataError, match="No space left on device"):
        write_frame(path, LONG)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["table.csv"]


def test_unknown_endings_are_not_written(tmp_path):
    with pytest.raises(DataError, match="unknown"):
        write_frame(tmp_path / "table.xls", FRAME)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("named", [True, False])
def test_the_index_of_a_parquet_file_is_the_input(tmp_path, named):
    pytest.importorskip("pyarrow")
    times = pd.date_range("1970-01-02", periods=3, name="time" if named else None)
    pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}, times).to_parquet(tmp_path / "table.parquet")
    table = read_table(tmp_path / "table.parquet")
    assert table.feature_names == ("time" if named else "index",)
    assert table.output_names == ("a", "b")
    assert table.X[:, 0].tolist() == [1.0, 2.0, 3.0]
    assert list(read_inputs(tmp_path / "table.parquet").columns)[1:] == ["a", "b"]
    # An index beside chosen inputs is no output.
    chosen = read_table(tmp_path / "table.parquet", x=["a"])
    assert (chosen.feature_names, chosen.output_names) == (("a",), ("b",))


def test_an_index_that_counts_rows_is_no_input(tmp_path):
    pytest.importorskip("pyarrow")
    FRAME.iloc[[2, 0]].to_parquet(tmp_path / "table.parquet")
    assert read_table(tmp_path / "table.parquet").feature_names == (FRAME.columns[0],)


def test_levels_of_an_index_are_inputs_of_cells(tmp_path):
    pytest.importorskip("pyarrow")
    index = pd.MultiIndex.from_product([[0.0, 1.0], [2.0, 3.0]], names=["u", "v"])
    pd.DataFrame({"site": list("abab"), "z": [1.0, 2.0, 3.0, 4.0]}, index).to_parquet(tmp_path / "table.parquet")
    table = read_table(tmp_path / "table.parquet", output_column="site", y=["z"])
    assert table.feature_names == ("u", "v")
    assert table.output_names == ("a", "b")


def test_dates_with_an_offset_are_those_of_a_time_zone(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("t,a\n1970-01-02T01:00+01:00,1\n1970-01-03T02:00+02:00,2\n")
    table = read_table(path)
    assert table.axes.kinds == ("dates in UTC",)
    assert table.X[:, 0].tolist() == [1.0, 2.0]
    path.write_text("t,a\n1970-01-02 00:00,1\n1970-01-03 00:00,2\n")
    assert read_table(path).axes.kinds == ("dates",)


@pytest.mark.parametrize("row", ["0.0,1.5,1.5", "2020-01-01,3,-1e3", "1,,2.5"])
def test_a_table_without_names_is_pointed_at(tmp_path, row):
    path = tmp_path / "table.csv"
    path.write_text(f"{row}\n{row}\n")
    with pytest.warns(UserWarning, match=r"named by numbers .*put a row of names above it"):
        read_table(path)


@pytest.mark.parametrize("row", ["0,1,2", "time,1,2", "t,a,b"])
def test_numbers_of_columns_are_names(tmp_path, row):
    path = tmp_path / "table.csv"
    path.write_text(f"{row}\n1,2,3\n")
    assert read_table(path).num_outputs == 2


@pytest.mark.parametrize(
    "given",
    [
        {"x": ["t", "t"]},
        {"output_column": "site", "y": ["site"]},
        {"x": ["z"], "output_column": "site", "y": ["z"]},
    ],
)
def test_columns_given_twice_are_refused(tmp_path, given):
    write_frame(tmp_path / "table.csv", LONG)
    with pytest.raises(DataError, match="was given twice"):
        read_table(tmp_path / "table.csv", **given)


def test_dates_are_no_outputs(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("t,a\n1,2020-01-01\n2,2020-01-02\n")
    with pytest.raises(DataError, match="Y column 'a' holds dates"):
        read_table(path)
