"""Files of arrays that are spoilt, or claim more than they hold: one sentence, and no memory taken."""

import zipfile

import numpy as np
import pytest

from manygp.data import read_inputs, read_table
from manygp.errors import DataError


def refuses(path, says):
    for read in (read_table, read_inputs):
        with pytest.raises(DataError, match=says) as caught:
            read(path)
        assert "\n" not in str(caught.value)


def corrupt(content):
    content[45:90] = bytes(45)


def cut_short(content):
    del content[100:]


def at_entries(offset, value):
    """A change of the directory of an archive, in the same place of every entry."""

    def change(content):
        place = content.find(b"PK\x01\x02")
        while place >= 0:
            content[place + offset] = value
            place = content.find(b"PK\x01\x02", place + 1)

    return change


SPOILT = {
    "corrupt": corrupt,
    "cut short": cut_short,
    "encrypted": at_entries(8, 1),
    "unknown compression": at_entries(10, 99),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_spoilt_archives_are_refused(tmp_path, kind):
    path = tmp_path / "table.npz"
    np.savez_compressed(path, X=np.random.default_rng(0).normal(size=(40, 1)), Y=np.ones((40, 2)))
    content = bytearray(path.read_bytes())
    SPOILT[kind](content)
    path.write_bytes(content)
    refuses(path, "cannot be read as an NPZ file of plain arrays")


@pytest.mark.parametrize("version", [1, 2])
def test_archives_that_claim_more_than_they_hold_are_refused(tmp_path, version):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 1), }".ljust(117) + b"\n"
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    with zipfile.ZipFile(tmp_path / "table.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", b"\x93NUMPY" + bytes([version, 0]) + length + header + bytes(80))
    refuses(tmp_path / "table.npz", r"claims 8,000 GB for 'X\.npy', far more than it can hold")


@pytest.mark.parametrize(
    ("X", "names", "says"),
    [
        (np.ones((3, 2)), ["a"], r"feature_names of shape \(1,\) for inputs of shape \(3, 2\)"),
        (np.ones((3, 2)), [["a", "b"]], "save one name for each column"),
        (np.ones((3, 2)), "ab", "save one name for each column"),
        (np.ones((3, 2, 2)), ["a", "b"], r"shape \(3, 2, 2\); expected \(inputs, features\)"),
        (np.ones((3, 2, 2)), None, r"shape \(3, 2, 2\); expected \(inputs, features\)"),
    ],
)
def test_names_that_do_not_fit_the_inputs_are_refused(tmp_path, X, names, says):
    given = {} if names is None else {"feature_names": np.array(names)}
    np.savez(tmp_path / "grid.npz", X=X, Y=np.ones((3, 2)), **given)
    refuses(tmp_path / "grid.npz", says)
    np.savez(tmp_path / "cells.npz", x=X, outputs=np.zeros(3), y=np.ones(3), **given)
    refuses(tmp_path / "cells.npz", says)


@pytest.mark.parametrize("kind", ["group", "dangling", "elsewhere", "empty", "claim"])
def test_spoilt_hdf5_files_are_refused(tmp_path, kind):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "table.h5", "w") as file:
        for name in ("train/train_Y", "train/train_mask"):
            file[name] = np.ones((3, 2))
        if kind == "group":
            file.create_group("all_X")
        elif kind == "dangling":
            file["all_X"] = h5py.SoftLink("/nowhere")
        elif kind == "elsewhere":
            file["all_X"] = h5py.ExternalLink("absent.h5", "/X")
        elif kind == "empty":
            file["all_X"] = h5py.Empty("f8")
        else:
            file.create_dataset("all_X", (10**12, 1), "f8", chunks=(1000, 1))
    refuses(tmp_path / "table.h5", "claims 8,000 GB" if kind == "claim" else "has no array 'all_X'")
