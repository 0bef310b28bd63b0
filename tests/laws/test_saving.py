"""Saving loses nothing: neither a model, whatever happens in the middle, nor files of others."""

import copy
import os
import signal
import stat
from pathlib import Path

import numpy as np
import pytest
from benchmarks import attack

import manygp
from manygp import ModelFileError
from manygp.estimators import folders, persistence

from .conftest import fitted, fresh, observations
from .damage import manifest_of, tensors_of
from .test_persistence import assert_same


@pytest.fixture
def folder(tmp_path):
    fitted("tlvmogp").save(tmp_path / "model")
    return tmp_path / "model"


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def full_disk(*arguments, **keywords):
    raise OSError(28, "No space left on device")


def test_saving_before_fitting(tmp_path):
    with pytest.raises(manygp.NotFittedError):
        fresh("tlvmogp").save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    model = copy.copy(fitted("tlvmogp"))
    model.num_samples = -1
    with pytest.raises(manygp.SettingError, match="num_samples=-1"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [b"a", 1j, frozenset({1}), ("a", b"b")], ids=repr)
def test_names_that_a_file_cannot_hold_are_text(tmp_path, name):
    X, Y = observations()
    model = fresh("ind-gp").fit(X, Y, output_names=[name, 1, 2, 3, 4])
    model.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model")
    assert loaded.output_names_ == model.output_names_
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize("name", [float("inf"), float("nan")])
def test_names_that_cannot_be_looked_up_are_refused_before_a_fit(name):
    X, Y = observations()
    with pytest.raises(manygp.DataError, match="cannot be looked up"):
        fresh("ind-gp").fit(X, Y, output_names=[name, 1, 2, 3, 4])


def test_a_new_model_replaces_the_old_one(folder):
    other = fitted("tlvmogp, paper preset")
    other.save(folder)
    assert_same(manygp.load(folder), other)
    assert len(list(folder.iterdir())) == 2
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


# -- what fails in the middle ------------------------------------------------------------------------------------------


def fail_at(monkeypatch, name, call, error=full_disk):
    """Let a function of the system fail when it is called for the so many-th time."""
    original, calls = getattr(os, name), []

    def counted(*args):
        calls.append(1)
        return error() if len(calls) == call else original(*args)

    monkeypatch.setattr(os, name, counted)


# Tensors and manifest are both written to the disk and renamed; folders are written to the disk in between.
@pytest.mark.parametrize(("name", "call"), [("fsync", 1), ("fsync", 3), ("replace", 1), ("replace", 2)])
def test_a_full_disk_leaves_the_old_model(folder, monkeypatch, name, call):
    before = contents(folder)
    with monkeypatch.context() as patch:
        fail_at(patch, name, call)
        with pytest.raises(ModelFileError, match=r"No space left on device.*nothing there was changed"):
            fitted("tlvmogp, paper preset").save(folder)
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert_same(manygp.load(folder), fitted("tlvmogp"))


def test_a_full_disk_leaves_no_trace_of_a_first_save(tmp_path, monkeypatch):
    for call in (1, 2):
        with monkeypatch.context() as patch:
            fail_at(patch, "replace", call)
            with pytest.raises(ModelFileError):
                fitted("tlvmogp").save(tmp_path / "model")
        assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(ModelFileError, match="could not be written"):
        fitted("tlvmogp").save(tmp_path / "file" / "model")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_saving_waits_for_the_end(folder, monkeypatch, number):
    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(number, interrupt)
    try:
        fail_at(monkeypatch, "fsync", 1, lambda: signal.raise_signal(number))
        with pytest.raises(KeyboardInterrupt):
            fitted("tlvmogp, paper preset").save(folder)
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, previous)
    assert_same(manygp.load(folder), fitted("tlvmogp, paper preset"))


def test_kills_readers_and_writers(tmp_path):
    """A few of each; `python -m benchmarks.attack` tries many."""
    for tried in (attack.kills(8, seed=1), attack.readers(60), attack.writers(30)):
        assert tried.held == tried.count, tried


def test_what_a_killed_save_has_left_goes_with_the_next(folder):
    for name in (".manygp-" + 32 * "0" + ".tmp", "tensors-" + 16 * "0" + ".safetensors"):
        (folder / name).write_bytes(b"half")
    fitted("tlvmogp, paper preset").save(folder)
    assert len(list(folder.iterdir())) == 2
    # Where nobody can say whether another save is under way, only what is old goes.
    old, young = (folder / f".manygp-{32 * digit}.tmp" for digit in "12")
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    kept = tensors_of(folder)
    folders._switch(folder, ("manygp.json", b"{}"), (kept.name, kept.read_bytes()), age=3600.0)
    assert not old.exists()
    assert young.exists()


# -- files of others ---------------------------------------------------------------------------------------------------


def test_folders_of_others_are_not_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "file").write_text("text")
    with pytest.raises(ModelFileError, match=r"exists and is not a ManyGP model \(chapter.tex\)"):
        fitted("tlvmogp").save(tmp_path / "thesis")
    with pytest.raises(ModelFileError, match="exists and is not a ManyGP model, nor a folder"):
        fitted("tlvmogp").save(tmp_path / "file")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]
    (tmp_path / "empty").mkdir()
    fitted("tlvmogp").save(tmp_path / "empty")
    assert_same(manygp.load(tmp_path / "empty"), fitted("tlvmogp"))


def test_a_note_beside_a_model_stays(folder):
    (folder / "note.txt").write_text("keep me")
    (folder / "figures").mkdir()
    before = contents(folder)
    with pytest.raises(ModelFileError, match=r"holds other files beside its model \(figures, note.txt\)"):
        fitted("tlvmogp, paper preset").save(folder)
    assert contents(folder) == before
    fitted("tlvmogp, paper preset").save(folder, overwrite=True)
    assert (folder / "note.txt").read_text() == "keep me"
    assert (folder / "figures").is_dir()
    assert_same(manygp.load(folder), fitted("tlvmogp, paper preset"))
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("text", ["{}", "", '{"format": 9, "estimator": "TLVMOGP"}'])
def test_a_description_of_others_stays(tmp_path, text):
    (tmp_path / "manygp.json").write_text(text)
    with pytest.raises(ModelFileError, match="that this version cannot read"):
        fitted("tlvmogp").save(tmp_path)
    assert contents(tmp_path) == {Path("manygp.json"): text.encode()}
    fitted("tlvmogp").save(tmp_path, overwrite=True)
    assert_same(manygp.load(tmp_path), fitted("tlvmogp"))


def test_a_file_with_the_name_of_old_tensors_is_not_ours(folder):
    (folder / "tensors.safetensors").write_text("of another program")
    with pytest.raises(ModelFileError, match="holds other files"):
        fitted("tlvmogp").save(folder)
    fitted("tlvmogp, paper preset").save(folder, overwrite=True)
    assert (folder / "tensors.safetensors").read_text() == "of another program"


def test_links_are_followed(folder, tmp_path):
    link = tmp_path / "latest"
    link.symlink_to("model")
    fitted("tlvmogp, paper preset").save(link)
    assert link.is_symlink()
    assert_same(manygp.load(folder), fitted("tlvmogp, paper preset"))
    # A link to a folder that is not there yet, and a description that is a link into a store.
    (tmp_path / "next").symlink_to("later")
    fitted("tlvmogp").save(tmp_path / "next")
    assert_same(manygp.load(tmp_path / "later"), fitted("tlvmogp"))
    store = tmp_path / "blob"
    (folder / "manygp.json").rename(store)
    (folder / "manygp.json").symlink_to(store)
    fitted("tlvmogp").save(folder)
    assert (folder / "manygp.json").is_symlink()
    assert_same(manygp.load(folder), fitted("tlvmogp"))


def test_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        fitted("tlvmogp").save(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert modes == {0o640}
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o750


def test_data_beside_a_model_is_saved_with_it(tmp_path, monkeypatch):
    """Where a leaf has more than tensors of its model, such as cells that predictions look at."""
    kind, kept = type(fitted("ind-gp")), {}
    monkeypatch.setattr(kind, "_kept_data", lambda self: {"cells": self.scaling_.y_center})
    monkeypatch.setattr(kind, "_keep_data", lambda self, data: kept.update(data))
    fitted("ind-gp").save(tmp_path / "model")
    manygp.load(tmp_path / "model")
    assert kept["cells"].tolist() == fitted("ind-gp").scaling_.y_center.tolist()
    assert manifest_of(tmp_path / "model")["format"] == persistence.FORMAT
