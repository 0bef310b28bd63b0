"""Broken folders give one sentence."""

import copy
import json
import math
import os
import time

import numpy as np
import pytest
import torch

import manygp
from manygp import ModelFileError
from manygp.estimators import folders

from .conftest import fitted
from .damage import edit, edit_tensors, manifest_of, tensors_of


@pytest.fixture
def folder(tmp_path):
    """A saved model to be damaged."""
    fitted("tlvmogp").save(tmp_path / "model")
    return tmp_path / "model"


def refused(folder, match):
    with pytest.raises(ModelFileError, match=match) as caught:
        manygp.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


# -- not a model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 3, b"model", "", "a\0b", "x" * 5000, "\ud800"], ids=repr)
def test_what_is_no_path(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (manygp.load, fitted("tlvmogp").save):
        with pytest.raises(ModelFileError, match=r"is no path|cannot be the name of a folder") as caught:
            use(path)
        assert len(str(caught.value)) < 300
    assert not list(tmp_path.iterdir())


def test_no_folder(tmp_path):
    refused(tmp_path / "nowhere", "is not a folder")
    (tmp_path / "file").write_text("text")
    refused(tmp_path / "file", "is not a folder")


def test_a_foreign_folder(tmp_path):
    refused(tmp_path, "is not a ManyGP model")
    (tmp_path / "manygp.json").write_text('{"name": "something else"}')
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1, 2]", "null", "\x00\x01", '{"format": 1', '"format"'),
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"format": 2, "estimator": NaN}',
        '{"format": 2, "estimator": "TLVMOGP", "seed": 1e999}',
        '{"format": 2, "estimator": "TLVMOGP", "seed": ' + "9" * 5000 + "}",
    ],
    ids=range(12),
)
def test_a_corrupt_description(folder, text):
    (folder / "manygp.json").write_text(text)
    refused(folder, "cannot be read")


def test_a_description_that_is_not_text(folder):
    (folder / "manygp.json").write_bytes(b"\xff\xfe\x00")
    refused(folder, "cannot be read")


def test_a_description_that_is_too_long(folder, monkeypatch):
    monkeypatch.setattr(folders, "_MOST_TEXT", 100)
    refused(folder, "cannot be read .*bytes instead of up to 100")
    with pytest.raises(ModelFileError, match="100 can be read back"):
        fitted("tlvmogp").save(folder, overwrite=True)


@pytest.mark.parametrize("name", ["manygp.json", "tensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_files_that_are_none(folder, name, kind):
    path = folder / name if name == "manygp.json" else tensors_of(folder)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    refused(folder, r"not a regular file|Is a directory")


# -- changed after it was written --------------------------------------------------------------------------------------


def test_flipped_bits(folder):
    rng, expected = np.random.default_rng(2), fitted("tlvmogp")
    for path in (folder / "manygp.json", tensors_of(folder)):
        whole = path.read_bytes()
        for _ in range(40):
            content = bytearray(whole)
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
            path.write_bytes(content)
            try:
                loaded = manygp.load(folder)
            except ModelFileError:
                continue
            # What may change without a word is the space between the words.
            assert path.name == "manygp.json"
            assert json.loads(content) == json.loads(whole)
            assert np.array_equal(loaded.model_.gp.Z.detach(), expected.model_.gp.Z.detach())
        path.write_bytes(whole)


def test_files_of_two_models_do_not_mix(folder, tmp_path):
    fitted("tlvmogp, tight bound").save(tmp_path / "other")
    tensors_of(folder).write_bytes(tensors_of(tmp_path / "other").read_bytes())
    refused(folder, "damaged")
    (tmp_path / "other" / "manygp.json").write_bytes((folder / "manygp.json").read_bytes())
    refused(tmp_path / "other", "tensors is missing")


def test_names_of_outputs_belong_to_their_tensors(folder):
    manifest = manifest_of(folder)
    manifest["output_names"] = manifest["output_names"][::-1]
    (folder / "manygp.json").write_text(json.dumps(manifest))
    refused(folder, "not as it was written")


@pytest.mark.parametrize("size", [0, 5, 200, -1])
def test_half_written_numbers(folder, size):
    content = tensors_of(folder).read_bytes()
    tensors_of(folder).write_bytes(content[:size])
    refused(folder, "damaged.*bytes instead of")


@pytest.mark.parametrize("key", ["model.gp.Z", "scaling.y_scale"])
def test_numbers_that_are_missing(folder, key):
    edit_tensors(folder, lambda tensors: tensors.pop(key))
    refused(folder, f"damaged.*{key.removeprefix('model.')} is missing")
    tensors_of(folder).unlink()
    refused(folder, "damaged")


# -- changed by somebody who knows about digests -----------------------------------------------------------------------


@pytest.mark.parametrize("version", [folders.FORMAT + 1, 99, 0, -1, "2", None, True, 2.0])
def test_a_newer_format(folder, version):
    edit(folder, format=version, manygp="9.9")
    refused(folder, "9.9.*upgrade ManyGP")


@pytest.mark.parametrize("name", ["Oracle", None, 3, ["TLVMOGP"]])
def test_an_unknown_kind_of_model(folder, name):
    edit(folder, estimator=name)
    refused(folder, "unknown kind.*known are TLVMOGP")


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": None},
        {"settings": {"no_such_setting": 1}},
        {"settings": {"kernel": {"tensor": "nowhere"}}},
        {"settings": {"kernel": {"float": "much", "more": 1}}},
        {"settings": {"random_state": -1}},
        {"settings": {"dtype": "float8"}},
        {"sizes": {}},
        {"sizes": None},
        {"sizes": {"num_features": 1, "num_outputs": 6, "latent_dim": 2, "num_inducing": 10}},
        {"sizes": {"num_features": -1, "num_outputs": 5, "latent_dim": 2, "num_inducing": 10}},
        {"history": None},
        {"history": {"records": [{}], "stop_reason": "epochs"}},
        {"history": {"records": [], "stop_reason": "line\nline"}},
        {"output_names": None},
        {"output_names": "abc"},
        {"output_names": ["a", "b", "c", "d", ["e"]]},
        {"output_names": ["a", "b", "c", "d", {"e": 1}]},
        {"output_names": ["a", "b", "c", "d", "d"]},
        {"feature_names": [1]},
        {"feature_names": ["a", "b"]},
        {"axes": {"inputs": 3}},
        {"axes": {"names": []}},
        {"seed": "none"},
        {"seed": -1},
        {"seed": 2**64},
        {"flat": "no"},
        {"surprise": 1},
        {"tensors": {"file": "../tensors-0123456789abcdef.safetensors", "bytes": 1, "sha256": ""}},
        {"tensors": None},
    ],
    ids=str,
)
def test_a_description_that_does_not_fit(folder, changes):
    edit(folder, **changes)
    refused(folder, "damaged")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("settings", "kernel", "cosine"),
        ("settings", "num_samples", -1),
        ("settings", "epochs", "often"),
        ("settings", "standardize", None),
        ("sizes", "linear_share", "some"),
        ("sizes", "linear_share", 2.0),
        ("sizes", "jitter", -1.0),
        ("sizes", "jitter", 1e3),
        ("sizes", "spectral_bound", -0.1),
        ("sizes", "likelihood", "oracle"),
        ("sizes", "terms", [["row effects", 2, 3]]),
        ("sizes", "coordinates", {"sphere": None}),
    ],
)
def test_a_spoilt_setting(folder, part, name, value):
    changed = manifest_of(folder)[part] | {name: value}
    edit(folder, **{part: changed})
    refused(folder, f"damaged.*{name}=" if part == "settings" else "damaged")


@pytest.mark.parametrize("key", ["settings", "sizes", "seed", "flat", "output_names", "feature_names", "history"])
def test_a_description_with_a_part_missing(folder, key):
    manifest = manifest_of(folder)
    del manifest[key]
    (folder / "manygp.json").write_text(json.dumps(manifest | {"sha256": folders._digest(manifest)}))
    refused(folder, f"damaged.*{key}")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("sizes", "num_outputs", 10**9),
        ("sizes", "num_inducing", 10**9),
        ("sizes", "num_inducing", 500),
        ("sizes", "latent_dim", 500),
        ("sizes", "num_blocks", 10**9),
    ],
)
def test_sizes_that_are_bombs(folder, part, name, value):
    edit(folder, **{part: manifest_of(folder)[part] | {name: value}})
    started = time.perf_counter()
    refused(folder, "damaged")
    # A moment, if nobody else is at work; a bomb would take for ever.
    assert time.perf_counter() - started < 30.0


def test_a_bomb_with_a_tensor_of_its_own(folder):
    """100,000 inducing points take 3 MB in one tensor, and 80 GB in another that is not in the file."""
    edit_tensors(folder, lambda tensors: tensors.update({"model.gp.Z": torch.zeros(100_000, 3, dtype=torch.float64)}))
    edit(folder, sizes=manifest_of(folder)["sizes"] | {"num_inducing": 100_000})
    refused(folder, "damaged.*80 GB of memory")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["model.gp.Z", "model.latents.mean", "scaling.y_center", "scaling.x_scale"])
def test_numbers_that_are_not_finite(folder, name, value):
    edit_tensors(folder, lambda tensors: tensors[name].view(-1)[0].fill_(value))
    refused(folder, f"damaged.*{name.removeprefix('model.')} holds a number")


def test_models_that_are_not_finite_are_not_saved(tmp_path):
    model = copy.deepcopy(fitted("tlvmogp"))
    model.model_.gp.Z.data[0, 0] = math.nan
    with pytest.raises(ModelFileError, match=r"gp\.Z holds a number that is not finite"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_numbers_of_another_kind(folder):
    edit_tensors(folder, lambda tensors: tensors.update({"model.gp.Z": tensors["model.gp.Z"].long()}))
    refused(folder, "damaged.*int64 instead of")


# -- older formats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_format_is_refused_in_one_sentence(folder, version):
    edit(folder, format=version, manygp="0.1.0")
    refused(folder, "0.1.0.*fit it again")
