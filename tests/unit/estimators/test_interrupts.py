"""Ctrl-C during a fit keeps what was learnt, and nothing long follows that a second one would spoil."""

import signal
import threading

import numpy as np
import pytest

import manygp
from manygp import OILMM, IndGP
from manygp.errors import SettingError
from manygp.estimators import ESTIMATORS, adapted, corrections, trained
from manygp.models.exact import ExactBatch
from manygp.models.oilmm import OrthogonalMixingModel

from .conftest import TINY, X

QUIET = {"device": "cpu", "progress": False}


class Interrupting:
    """A progress bar during which somebody presses Ctrl-C."""

    def __enter__(self):
        return self

    def __exit__(self, *exception): ...

    def update(self, epoch, total, bound_per_cell):
        raise KeyboardInterrupt


class Sending(Interrupting):
    """A progress bar during which the system sends a signal."""

    def __init__(self, number):
        self.number = number

    def update(self, epoch, total, bound_per_cell):
        signal.raise_signal(self.number)


# Every model hears one signal, and one model every signal: who hears does not depend on what was sent.
HEARD = [(signal.SIGTERM, kind) for kind in ESTIMATORS.values() if kind is not OILMM]
HEARD += [(number, manygp.TLVMOGP) for number in (signal.SIGINT, signal.SIGHUP)]


@pytest.mark.parametrize(("number", "kind"), HEARD)
def test_what_ends_a_program_ends_a_fit_and_keeps_it(field, monkeypatch, number, kind):
    monkeypatch.setattr(trained, "make_progress", lambda progress: Sending(number))
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    # A job in the background may ignore Ctrl-C.
    before = signal.signal(number, usual)
    try:
        # A number of inducing points, where there is one, keeps independent GPs from being exact.
        sizes = {"num_inducing": 8} if "num_inducing" in kind().get_params() else {}
        model = kind(**sizes, epochs=5, **QUIET).fit(X, field[1])
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    assert model.history_.stop_reason == "interrupted"
    assert len(model.history_) == 1
    assert np.isfinite(model.predict(X)).all()


def test_handlers_of_the_program_stay(field, monkeypatch):
    came = []
    monkeypatch.setattr(trained, "make_progress", lambda progress: Sending(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: came.append(1))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        model = manygp.TLVMOGP(**TINY).fit(X, field[1])
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, ignored)
    assert model.history_.stop_reason == "epochs"
    assert len(came) == len(model.history_)


def test_fits_in_other_threads_leave_signals_alone(field):
    models = []
    other = threading.Thread(target=lambda: models.append(manygp.TLVMOGP(**TINY).fit(X, field[1])))
    other.start()
    other.join()
    assert models[0].history_.stop_reason == "epochs"


def refuse(*_, **__):
    raise AssertionError("This takes long, and the fit was to end.")


def raise_at(monkeypatch, owner, name, call, error=KeyboardInterrupt):
    """Let a method raise an error when it is called for the so many-th time."""
    original, calls = getattr(owner, name), []

    def counted(*args, **more):
        calls.append(1)
        if len(calls) == call:
            raise error
        return original(*args, **more)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_the_closing_steps_of_tlvmogp_are_left_out(field, monkeypatch):
    monkeypatch.setattr(trained, "make_progress", lambda progress: Interrupting())
    for name in ("calibrate_noise", "find_row_effects"):
        monkeypatch.setattr(corrections, name, refuse)
    model = manygp.TLVMOGP(**TINY).fit(X, field[1])
    assert model.history_.stop_reason == "interrupted"
    assert np.isfinite(model.predict(X)).all()


def test_so_are_those_with_coordinates(field, monkeypatch):
    S, Y = field
    monkeypatch.setattr(trained, "make_progress", lambda progress: Interrupting())
    calls = raise_at(monkeypatch, adapted, "settle", 2, AssertionError)
    model = manygp.TLVMOGP(**TINY).fit(X, Y, output_coordinates=S)
    assert model.history_.stop_reason == "interrupted"
    assert len(calls) == 1
    assert np.isfinite(model.predict_new_outputs(X, output_coordinates=S[:2]).mean).all()


@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [
        (manygp.TLVMOGP, "corrections", "calibrate_noise"),
        (manygp.TLVMOGP, "corrections", "find_row_effects"),
        (manygp.GMOGP, "gmogp", "stretch_lengthscales"),
    ],
)
def test_a_closing_step_that_is_interrupted_is_undone(field, monkeypatch, kind, module, name):
    """What training has learnt stands."""
    sizes = {"num_inducing": 8, "epochs": 3, **QUIET}

    def interrupted(model, *_):
        model.likelihood.noise = 9.0 * model.likelihood.noise
        raise KeyboardInterrupt

    whole = f"manygp.estimators.{module}.{name}"
    monkeypatch.setattr("manygp.estimators.corrections.calibrate_noise", lambda *_: 1.0)
    monkeypatch.setattr(whole, lambda *_: [] if name == "find_row_effects" else 1.0)
    plain = kind(**sizes).fit(X, field[1])
    monkeypatch.setattr(whole, interrupted)
    model = kind(**sizes).fit(X, field[1])
    assert plain.history_.stop_reason == "epochs"
    assert model.history_.stop_reason == "interrupted"
    np.testing.assert_array_equal(model.model_.likelihood.noise.detach(), plain.model_.likelihood.noise.detach())


@pytest.fixture
def table(rng):
    inputs = np.linspace(0.0, 1.0, 30)[:, None]
    return inputs, np.sin(6.0 * inputs + np.arange(5)) + 0.1 * rng.standard_normal((30, 5))


# In the first search, while outputs pool what they know, in the search after it, and in steps as published.
@pytest.mark.parametrize(
    ("settings", "call"), [({}, 5), ({}, "pool"), ({}, -1), ({"preset": "paper", "epochs": 50}, 5)]
)
def test_exact_gps_keep_what_was_found(table, monkeypatch, tmp_path, settings, call):
    if call == "pool":
        raise_at(monkeypatch, manygp.models.indgp, "pooled_prior", 1)
    else:
        if call == -1:
            with monkeypatch.context() as patch:
                calls = raise_at(patch, ExactBatch, "value_and_gradient", 0)
                IndGP(**settings, **QUIET).fit(*table)
            call = len(calls)
        raise_at(monkeypatch, ExactBatch, "value_and_gradient", call)
    model = IndGP(**settings, **QUIET).fit(*table)
    assert model.history_.stop_reason == "interrupted"
    assert np.isfinite(model.history_["bound"]).all()
    assert np.mean((model.predict(table[0]) - table[1]) ** 2) < 0.2
    model.save(tmp_path / "model")


def test_a_start_that_is_interrupted_leaves_nothing(table, monkeypatch):
    raise_at(monkeypatch, ExactBatch, "value_and_gradient", 3)
    with pytest.raises(KeyboardInterrupt):
        manygp.SVLMC(num_latents=2, epochs=2, **QUIET).fit(*table)


@pytest.mark.parametrize(("call", "records"), [(1, 0), (12, None)])
def test_oilmm_keeps_what_was_found(table, monkeypatch, call, records):
    raise_at(monkeypatch, OrthogonalMixingModel, "log_likelihood", call)
    model = OILMM(num_latents=2, **QUIET).fit(*table)
    assert model.history_.stop_reason == "interrupted"
    assert len(model.history_) == records if records is not None else len(model.history_) > 0
    assert np.isfinite(model.history_["bound"]).all()
    assert np.mean((model.predict(table[0]) - table[1]) ** 2) < 0.2


def test_oilmm_says_that_a_climb_has_failed(table, monkeypatch):
    raise_at(monkeypatch, OrthogonalMixingModel, "log_likelihood", 12, manygp.NumericalError("too far"))
    assert OILMM(num_latents=2, **QUIET).fit(*table).history_.stop_reason == "failed"


@pytest.mark.parametrize(
    ("kind", "settings"), [(manygp.TLVMOGP, {"latent_dim": 1, "num_inducing": 4}), (OILMM, {}), (IndGP, {})]
)
def test_a_time_limit_ends_training_and_keeps_what_was_learnt(kind, settings):
    Y = np.sin(X + np.arange(3))
    model = kind(**settings, random_state=0, **QUIET).fit(X, Y, time_limit=0)
    assert model.history_.stop_reason in ("time limit", "converged")
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(SettingError, match="time_limit='soon' is no duration"):
        kind(**settings, **QUIET).fit(X, Y, time_limit="soon")
