"""Killed and resumed = never killed, to the bit."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import manygp
from manygp import ModelFileError, SettingError
from manygp.estimators import checkpoint
from manygp.training import loop

from .conftest import NAMES, fitted, fresh, observations

# One of each kind of estimator and of loop.
KINDS = ("tlvmogp, paper preset", "lvmogp", "ind-gp", "ind-gp, paper preset", "sv-lmc", "g-mogp", "oilmm", "sgprn")


class Killed(BaseException):
    """What no fit catches."""


@pytest.fixture(autouse=True)
def _looks(monkeypatch):
    """Runs as short as these are noted after every other step."""
    monkeypatch.setattr(loop, "_LOOK_STEPS", 2)


def kill_after(monkeypatch, count):
    """Let a fit end right after so many writes."""
    write, written = checkpoint.Checkpoint._write, []

    def fatal(self):
        write(self)
        written.append(1)
        if len(written) == count:
            raise Killed

    monkeypatch.setattr(checkpoint.Checkpoint, "_write", fatal)


def assert_same(resumed, whole):
    ours, theirs = resumed.model_.state_dict(), whole.model_.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name in ("bound", "kl_u", "learning_rate", "natural_rate"):
        assert resumed.history_[name] == whole.history_[name]
    assert resumed.history_.stop_reason == whole.history_.stop_reason
    assert all(np.array_equal(resumed.scaling_.arrays()[key], value) for key, value in whole.scaling_.arrays().items())


def resumed(fit, folder, monkeypatch, count=3):
    with monkeypatch.context() as patch:
        kill_after(patch, count)
        with pytest.raises(Killed):
            fit(checkpoint=folder, checkpoint_every=0)
    return fit(checkpoint=folder, checkpoint_every=0)


@pytest.mark.parametrize("name", KINDS)
def test_a_fit_that_was_killed_ends_as_if_it_had_not_been(name, monkeypatch, tmp_path):
    def fit(**settings):
        return fresh(name).fit(*observations(), output_names=NAMES, **settings)

    assert_same(resumed(fit, tmp_path / "c", monkeypatch), fitted(name))


def neighbours(**checkpoint):
    model = manygp.TLVMOGP(2, 10, num_neighbors=4, epochs=5, freeze_likelihood=2, device="cpu", progress=False)
    return model.fit(*observations(), **checkpoint)


@functools.cache
def never_killed():
    return neighbours()


def coordinates(**checkpoint):
    model = manygp.TLVMOGP(2, 10, epochs=3, device="cpu", progress=False, random_state=None)
    # Nobody knows the seed but the checkpoint.
    if not checkpoint:
        model.random_state = 3
    return model.fit(*observations(), output_coordinates=np.arange(5.0)[:, None], **checkpoint)


def counts(**checkpoint):
    X, Y = observations()
    model = manygp.TLVMOGP(2, 10, likelihood="poisson", epochs=4, device="cpu", progress=False)
    return model.fit(X, np.round(np.abs(Y)), exposure=1.0 + X[:, 0], **checkpoint)


@pytest.mark.parametrize(("fit", "count"), [(neighbours, 2), (coordinates, 3), (counts, 1)])
def test_so_does_one_with_more_to_remember(fit, count, monkeypatch, tmp_path):
    if fit is coordinates:
        monkeypatch.setattr(np.random, "default_rng", _always_three(np.random.default_rng))
    whole = never_killed() if fit is neighbours else fit()
    assert_same(resumed(fit, tmp_path / "c", monkeypatch, count), whole)


def _always_three(default_rng):
    """A source of seeds that gives 3 to the first who asks for a fresh one, and then others."""
    given = []

    class First:
        def integers(self, high):
            given.append(3 + 4 * len(given))
            return given[-1]

    return lambda *seed: default_rng(*seed) if seed else First()


def test_a_finished_fit_need_not_be_done_again(monkeypatch, tmp_path):
    first = neighbours(checkpoint=tmp_path / "c")
    monkeypatch.setattr(loop, "take_step", None)
    assert_same(neighbours(checkpoint=tmp_path / "c"), first)


def test_an_interrupted_fit_goes_on(monkeypatch, tmp_path):
    """SIGTERM ends it with a model, and leaves a checkpoint."""
    step, taken = loop.take_step, []

    def terminated(*arguments):
        taken.append(1)
        if len(taken) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", terminated)
        early = neighbours(checkpoint=tmp_path / "c")
    assert early.history_.stop_reason == "interrupted"
    assert len(early.history_) < 5
    assert_same(neighbours(checkpoint=tmp_path / "c"), never_killed())


# -- other fits, other disks -------------------------------------------------------------------------------------------


def test_another_fit_is_refused_in_a_sentence(monkeypatch, tmp_path):
    X, Y = observations()
    settings = {"num_inducing": 6, "num_latents": 2, "epochs": 2, "device": "cpu", "progress": False}
    manygp.SVLMC(**settings).fit(X, Y, checkpoint=tmp_path / "c")
    others = {
        "epochs was another": (manygp.SVLMC(**settings | {"epochs": 3}), Y),
        "the table was another": (manygp.SVLMC(**settings), np.where(np.isnan(Y), 0.0, Y)),
        "of SVLMC, and this is OILMM": (manygp.OILMM(device="cpu", progress=False), Y),
    }
    for words, (model, values) in others.items():
        with pytest.raises(ModelFileError, match=rf"another fit \({words}\): call fit as it was called, or give"):
            model.fit(X, values, checkpoint=tmp_path / "c")
    monkeypatch.setattr(checkpoint, "__version__", "99.0")
    with pytest.raises(ModelFileError, match=r"written by ManyGP .*, and this is 99.0"):
        manygp.SVLMC(**settings).fit(X, Y, checkpoint=tmp_path / "c")


def test_what_is_no_checkpoint_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ModelFileError, match="exists and is not a ManyGP checkpoint"):
        neighbours(checkpoint=tmp_path / "mine")
    fitted("sv-lmc").save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="is not a ManyGP checkpoint"):
        neighbours(checkpoint=tmp_path / "model")
    with pytest.raises(SettingError, match="'often' is no duration"):
        neighbours(checkpoint=tmp_path / "c", checkpoint_every="often")


def test_a_damaged_checkpoint_is_refused(tmp_path):
    neighbours(checkpoint=tmp_path / "c")
    (tensors,) = (tmp_path / "c").glob("tensors-*")
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"?")
    with pytest.raises(ModelFileError, match="is damaged"):
        neighbours(checkpoint=tmp_path / "c")


def test_a_full_disk_does_not_end_a_fit(monkeypatch, tmp_path):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("manygp.estimators.folders._put", full)
    with pytest.warns(UserWarning, match=r"written to .*c \(No space left on device\): the fit goes on"):
        model = neighbours(checkpoint=tmp_path / "c", checkpoint_every=0)
    assert not (tmp_path / "c").exists()
    assert_same(model, never_killed())


# -- a real end --------------------------------------------------------------------------------------------------------

FIT = """
import sys, torch
path, threads, tests = sys.argv[1:]
torch.set_num_threads(int(threads))
sys.path.insert(0, tests)
from manygp.training import loop
loop._LOOK_STEPS = 2
from laws.test_checkpoints import longer
longer(checkpoint=path, checkpoint_every=0)
"""


def longer(**checkpoint):
    model = manygp.TLVMOGP(2, 12, num_neighbors=4, epochs=60, device="cpu", progress=False)
    return model.fit(*observations(), **checkpoint)


def test_kill_9(tmp_path):
    """At a random moment after the first checkpoint."""
    rng, manifest = np.random.default_rng(), tmp_path / "c" / "checkpoint.json"
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", FIT, str(tmp_path / "c"), str(torch.get_num_threads()), str(tests)]
    with subprocess.Popen(command) as process:
        while not manifest.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.3))
        process.kill()
    assert manifest.exists()
    assert_same(longer(checkpoint=tmp_path / "c", checkpoint_every=0), longer())
