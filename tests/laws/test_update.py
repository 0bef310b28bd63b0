"""Cells that come after a fit: as if they had been there, and as if they never had."""

import copy
import functools

import numpy as np
import pytest
import torch

import manygp
from manygp import DataError, NumericalError, SettingError
from manygp.data import Grid, GridPlan
from manygp.models import group_update
from manygp.training import settle

from ..tolerances import assert_close
from .conftest import fitted

QUIET = {"device": "cpu", "progress": False}
TINY = {"latent_dim": 2, "num_inducing": 12, "epochs": 5, **QUIET}
KINDS = {
    "plain": {"corrections": ("noise",), "num_neighbors": 0},
    "point latents": {
        "corrections": ("noise",),
        "latent_posterior": "point",
        "standardize": "global",
        "num_neighbors": 0,
    },
    "paper": {"preset": "paper"},
    "effects of rows": {"num_neighbors": 0, "epochs": 30},
    "neighbours": {"num_neighbors": 6, "epochs": 40},
    "counts": {"likelihood": "poisson", "corrections": ("noise",)},
}
JUMPS = ("effects of rows", "neighbours")
KNOWN, ROWS = 30, 36


def table(kind="plain"):
    """Curves with jumps that all outputs share; the last rows come later."""
    rng = np.random.default_rng(7)
    x = np.linspace(0.0, 6.0, ROWS)[rng.permutation(ROWS)][:, None]
    Y = np.sin(x + np.linspace(0.0, 2.0, 12)) + 0.05 * rng.standard_normal((ROWS, 12))
    if kind in JUMPS:
        Y = Y + 0.5 * rng.standard_normal((ROWS, 1)) * np.linspace(0.5, 1.5, 12)
    if kind == "counts":
        Y = rng.poisson(np.exp(Y)).astype(float)
    Y[rng.random(Y.shape) < 0.1] = np.nan
    return x, Y


@functools.cache
def model_of(kind):
    x, Y = table(kind)
    return manygp.TLVMOGP(**TINY | KINDS[kind]).fit(x[:KNOWN], Y[:KNOWN])


def rows(kind, first, last):
    x, Y = table(kind)
    return x[first:last], Y[first:last].copy()


def distance(one, other):
    """The largest difference between two models, in predictions of all cells and in q(u) relative to its size."""
    ours, theirs = one.model_.gp.posterior.moments(), other.model_.gp.posterior.moments()
    q = max((a - b).abs().max().item() for a, b in [(ours.mean, theirs.mean), (ours.covariance, theirs.covariance)])
    x = np.linspace(-0.5, 6.5, 9)[:, None]
    x = np.concatenate([x, table()[0][KNOWN:]])
    mine, yours = one.predict_dist(x), other.predict_dist(x)
    return max(q, np.abs(mine.mean - yours.mean).max(), np.abs(mine.std - yours.std).max())


# -- as if they had been there -----------------------------------------------------------------------------------------


def test_an_update_is_the_optimum_for_all_cells():
    """With latent vectors that are points, q(u) is that of all cells at once."""
    model, (x, Y) = model_of("point latents"), table()
    settled = copy.deepcopy(model)
    states = []
    for last in (KNOWN, ROWS):
        plan = GridPlan(Grid(x[:last], Y[:last]), model.scaling_)
        settle(settled.model_, plan, dtype=torch.float64, device=torch.device("cpu"), seed=0)
        states.append({name: value.clone() for name, value in settled.model_.state_dict().items()})
    settled.model_.load_state_dict(states[0])
    new = settled.update(x[KNOWN:], Y[KNOWN:])
    for name in ("gp.posterior.theta", "gp.posterior.precision"):
        assert torch.allclose(new.model_.state_dict()[name], states[1][name], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_tells_about_the_rows_that_came(kind):
    """Half of the cells of new rows, scored on the other half."""
    model, (x, Y) = model_of(kind), rows(kind, KNOWN, ROWS)
    known, held = np.where(np.arange(12) % 2, Y, np.nan), np.where(np.arange(12) % 2, np.nan, Y)
    new = model.update(x, known)
    before, after = model.evaluate(x, held), new.evaluate(x, held)
    assert after["nll"] < before["nll"] + 0.01
    if kind in JUMPS:
        assert after["mse"] < 0.7 * before["mse"]
    # Nothing else has changed.
    ours, theirs = new.model_.state_dict(), model.model_.state_dict()
    changed = {
        name for name in ours if ours[name].shape != theirs[name].shape or not torch.equal(ours[name], theirs[name])
    }
    assert changed
    assert all(name.split(".")[0] in ("gp", "latents", "observed", "terms") for name in changed)
    assert not [name for name in changed if name.startswith(("gp.kernel", "gp.Z"))]


def test_updates_one_by_one_are_one_update():
    model = model_of("neighbours")
    x, Y = rows("neighbours", KNOWN, ROWS)
    one = model.update(x, Y)
    two = model.update(x[:3], Y[:3]).update(x[3:], Y[3:])
    assert distance(one, two) < 1e-6


def test_latent_vectors_follow_neighbours_where_all_cells_are_likelier():
    model, (x, Y) = model_of("neighbours"), rows("neighbours", KNOWN, ROWS)
    new = model.update(x, Y).model_
    stayed = copy.deepcopy(new)
    stayed.latents.load_state_dict(model.model_.latents.state_dict())
    assert not torch.equal(new.latents.mean, stayed.latents.mean)
    assert group_update._optimum(new, 0)[1] > group_update._optimum(stayed, 0)[1]


@torch.no_grad()
def test_the_evidence_of_groups_is_the_bound_at_its_optimum_and_has_its_gradient(monkeypatch):
    model = copy.deepcopy(model_of("neighbours").model_)
    # Other latent vectors may have other groups, between which the evidence jumps.
    batches = list(group_update._batches(model, 0))
    monkeypatch.setattr(group_update, "_batches", lambda *_: batches)
    natural, value = group_update._optimum(model, 0)
    model.gp.posterior.put(*natural)
    gradient = torch.zeros_like(model.latents.mean)
    assert group_update._optimum(model, 0, gradient)[1] == value
    q, num_cells = model.gp.posterior.moments(), len(model.observed.y)
    bound = -q.kl() - model.latents.kl(torch.arange(model.num_outputs)).sum()
    for batch in batches:
        h = model.latents.means(batch.outputs).index_select(0, batch.column)
        bound += model.group_evidence(batch, h).expected_log_lik(q)
    assert_close(bound + 0.5 * num_cells * np.log(2.0 * np.pi), value)
    direction, step, ends = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0)).double(), 1e-6, []
    for sign in (1.0, -1.0):
        model.latents.mean.add_(sign * step * direction)
        ends.append(group_update._optimum(model, 0)[1])
        model.latents.mean.sub_(sign * step * direction)
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float((gradient * direction).sum()), rel=1e-4)


# -- as if they never had ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_forgotten_has_never_come(kind):
    model, (x, Y) = model_of(kind), rows(kind, KNOWN, ROWS)
    wrong = np.where(np.isnan(Y), np.nan, 4.0)
    never = model.update(x[:2], Y[:2])
    forgot = model.update(x[:2], Y[:2]).update(x[2:], wrong[2:]).update(forget=(x[2:], wrong[2:]))
    assert distance(never, forgot) < 1e-6
    assert distance(model, model.update(x, wrong).update(forget=(x, wrong))) < 1e-6


@pytest.mark.parametrize("kind", ["plain", "neighbours"])
def test_a_corrected_value_is_as_good_as_the_right_one(kind):
    model, (x, Y) = model_of(kind), rows(kind, KNOWN, ROWS)
    wrong = Y.copy()
    wrong[0] += 3.0
    right, corrected = model.update(x, Y), model.update(x, wrong).update(x[:1], Y[:1])
    # Cells come in another order, and draws with them.
    assert distance(right, corrected) < (0.05 if kind == "plain" else 0.1)
    assert distance(right, model.update(x, wrong)) > 0.2


def test_cells_of_the_fit_are_forgotten_and_come_back():
    for kind in ("plain", "neighbours"):
        model, (x, Y) = model_of(kind), rows(kind, 0, 2)
        without = model.update(forget=(x, Y))
        assert without.predict(x, return_std=True)[1].mean() > model.predict(x, return_std=True)[1].mean()
        if kind == "neighbours":
            assert len(without.model_.observed.y) == len(model.model_.observed.y) - np.sum(~np.isnan(Y))
    with pytest.raises(NumericalError, match="knows less than the cells to be forgotten"):
        model_of("plain").update(forget=(np.linspace(0, 6, 200)[:, None], np.zeros((200, 12))))


# -- around it ---------------------------------------------------------------------------------------------------------


def test_surprise_tells_when_to_fit_anew():
    model, (x, Y) = model_of("plain"), rows("plain", KNOWN, ROWS)
    assert np.isnan(model.surprise_)
    assert not model.refit_advised_
    expected, strange = model.update(x, Y), model.update(x, -Y)
    assert expected.surprise_ < 0.5 < strange.surprise_
    assert strange.refit_advised_
    assert not expected.refit_advised_


def test_an_updated_model_is_saved_with_what_came(tmp_path):
    model, (x, Y) = model_of("neighbours"), rows("neighbours", KNOWN, ROWS)
    new = model.update(x[:3], Y[:3])
    new.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model")
    assert distance(loaded, new) == 0.0
    assert loaded.surprise_ == new.surprise_
    assert distance(loaded.update(x[3:], Y[3:]), new.update(x[3:], Y[3:])) == 0.0
    assert distance(loaded.update(forget=(x[:3], Y[:3])), model) < 1e-6


def test_what_cannot_be_updated_says_so():
    x, Y = rows("plain", KNOWN, ROWS)
    with pytest.raises(SettingError, match="SVLMC cannot be updated: fit it anew"):
        fitted("sv-lmc").update(x, Y)
    with pytest.raises(DataError, match="update got no observations"):
        model_of("plain").update()
    with pytest.raises(DataError, match="6 of the cells to forget are neither"):
        model_of("neighbours").update(forget=(np.full((1, 1), 9.0), np.where(np.arange(12)[None] < 6, 0.0, np.nan)))
    with pytest.raises(DataError, match="forget takes a pair"):
        model_of("plain").update(forget=x)
    with pytest.raises(DataError, match="Y has 3 outputs"):
        model_of("plain").update(x, Y[:, :3])
