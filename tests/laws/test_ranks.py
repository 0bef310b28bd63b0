"""K ranks = one rank with a K-fold batch: whoever has the shards, the model is the same."""

import os
import signal
import time

import numpy as np
import pytest
import torch
import xarray
from benchmarks import attack

import manygp
from manygp import distributed
from manygp.data import CellPlan, GridPlan, ShardPlan, as_table
from manygp.estimators import ESTIMATORS, neighbors
from manygp.exchange import Exchange
from manygp.training import loop
from manygp.variational import Latents

from ..ranks import run_ranks
from . import worlds

# An output without observations is part of the problem.
pytestmark = pytest.mark.filterwarnings("ignore:.*no observed cell:UserWarning")

KINDS = {
    "gaussian": {},
    "a noise of each output's own, tight bound, clipped": {
        "likelihood": "pooled-gaussian",
        "bound": "tight",
        "latent_posterior": "diagonal",
        "max_grad_norm": 1e-3,
    },
    "counts": {"likelihood": "negative-binomial"},
    "paper preset": {"preset": "paper"},
    "list of cells": {},
    "neighbours": {"num_neighbors": 6, "epochs": 4},
    "neighbours, noise of inputs, corrected, clipped": {
        "num_neighbors": 6,
        "noise": "per-input",
        "max_grad_norm": 1e-3,
        "corrections": ("noise",),
    },
}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    """Batches of a few groups, so that there are several."""
    monkeypatch.setattr(neighbors, "_GROUP_SIZE", 4)
    monkeypatch.setattr(neighbors, "_BATCH_CELLS", 10)


def observations(kind):
    rng = np.random.default_rng(3)
    X = np.linspace(0.0, 3.0, 12)[:, None]
    Y = np.sin(X + np.linspace(0.0, 2.0, 9)) + 0.1 * rng.standard_normal((12, 9))
    if kind == "counts":
        Y = rng.poisson(np.exp(Y)).astype(float)
    Y[rng.uniform(size=Y.shape) < 0.2] = np.nan
    Y[:, 4] = np.nan
    if kind != "list of cells":
        return X, Y
    row, output = np.nonzero(~np.isnan(Y))
    x = X[row] + rng.uniform(size=(len(row), 1))
    return (manygp.data.cells_table(x, output, Y[row, output], tuple(range(9))),)


def estimator(kind, **settings):
    sizes = {"batch_inputs": 5, "batch_outputs": 2, "epochs": 2, "num_neighbors": 0, "corrections": ()}
    return manygp.TLVMOGP(2, 8, progress=False, device="cpu", **sizes | KINDS[kind] | settings)


def numbers(model):
    told = {name: value.numpy() for name, value in model.model_.state_dict().items()}
    return told | {"bound": np.array(model.history_["bound"]), "mean": model.predict()}


def together(kind, shards, **settings):
    """A model that one process has fitted to all shards at once."""
    model = estimator(kind)
    model._exchange = Exchange(shards)
    return model.fit(*observations(kind), **settings)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("size", "kinds"), [(2, list(KINDS)[1:]), (4, ["gaussian", "counts", "neighbours"])])
def test_ranks_are_one_rank_with_a_larger_batch(size, kinds):
    def task(rank):
        return {kind: numbers(distributed.fit(estimator(kind), *observations(kind))) for kind in kinds}

    results = run_ranks(size, task)
    for kind in kinds:
        expected = numbers(together(kind, size))
        for how, found in results:
            assert how == "done", found
            assert_same(found[kind], expected)


@pytest.mark.parametrize("make", [lambda *s: GridPlan(*s[:2], 5, 2, s[2]), lambda *s: CellPlan(*s[:2], 7, s[2])])
def test_shards_deal_every_cell_once_with_the_weights_of_one_plan(make):
    """And a rank's part of a batch is that of the whole, drawn and all."""
    table = as_table(*observations("gaussian"))
    raw = worlds.raw(table)
    whole = ShardPlan(lambda number: make(table, raw, (number, 3)), range(3), 1)
    batches = list(whole.epoch(np.random.default_rng(0)))
    cells = [(row, batch.outputs[at]) for batch in batches for row, at in zip(batch.row, batch.column, strict=True)]
    assert sorted(cells) == sorted(zip(*np.nonzero(~np.isnan(table.Y)), strict=True))
    weights = np.zeros(9)
    for batch in batches:
        np.add.at(weights, batch.outputs, batch.output_weight / len(whole))
    np.testing.assert_allclose(weights, 1.0)
    part = ShardPlan(lambda number: make(table, raw, (number, 3)), (1,), 3)
    for ours, theirs in zip(part.epoch(np.random.default_rng(0)), batches, strict=True):
        assert ours.key == theirs.key
        assert ours.cell_weight == 3 * theirs.cell_weight == 3 * len(whole)
        is_ours = theirs.outputs[theirs.column] % 3 == 1
        np.testing.assert_array_equal(ours.y, theirs.y[is_ours])


def test_draws_of_an_output_are_its_own():
    latents, column, generator = (
        Latents(6, 2).requires_grad_(False),
        torch.tensor([0, 1, 0, 2, 2, 0]),
        torch.Generator(),
    )
    draws = latents.rsample(torch.tensor([5, 1, 3]), column, generator, key=11)
    own = latents.rsample(torch.tensor([5]), torch.tensor([0, 0, 0]), generator, key=11)
    assert torch.equal(draws[column == 0], own)
    # In pairs ±ε around a mean of zero.
    assert torch.equal(own[0], -own[1])
    assert not torch.equal(own[0], own[2])
    assert not torch.equal(own, latents.rsample(torch.tensor([5]), torch.tensor([0, 0, 0]), generator, key=12))
    many = latents.rsample(torch.tensor([2]), torch.zeros(40_000, dtype=torch.int64), generator, key=0)
    assert float((many.var(0) - 1.0).abs().max()) < 0.03


@pytest.mark.parametrize("kind", ["gaussian", "neighbours"])
def test_a_fit_goes_on_with_another_number_of_ranks(kind, monkeypatch, tmp_path):
    """Two ranks are killed at step 5, one goes on with what they have written."""
    monkeypatch.setattr(loop, "_LOOK_STEPS", 2)

    def task(rank):
        step, taken = loop.take_step, []

        def fatal(*given):
            taken.append(1)
            if len(taken) == 5:
                os._exit(1)
            return step(*given)

        loop.take_step = fatal
        distributed.fit(estimator(kind), *observations(kind), checkpoint=tmp_path, checkpoint_every=0)

    assert [how for how, _ in run_ranks(2, task)] == ["dead", "dead"]
    every = [], loop.take_step
    monkeypatch.setattr(loop, "take_step", lambda *given: every[0].append(1) or every[1](*given))
    expected = numbers(together(kind, 2))
    monkeypatch.setattr(loop, "take_step", every[1])
    steps = loop.take_step, []
    monkeypatch.setattr(loop, "take_step", lambda *given: steps[1].append(1) or steps[0](*given))
    found = estimator(kind).fit(*observations(kind), checkpoint=tmp_path)
    assert_same(numbers(found), expected)
    # The ranks have taken four of them.
    assert len(steps[1]) == len(every[0]) - 4 > 4


def test_a_dead_rank_ends_the_others_in_seconds():
    def task(rank):
        step, taken = loop.take_step, []

        def fatal(*given):
            taken.append(1)
            if rank == 1 and len(taken) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*given)

        loop.take_step = fatal
        with pytest.raises(manygp.RankError, match=r"^Another rank is gone .*checkpoint\.$"):
            distributed.fit(estimator("gaussian"), *observations("gaussian"))

    started = time.monotonic()
    assert [how for how, _ in run_ranks(2, task)] == ["done", "dead"]
    assert time.monotonic() - started < 30.0


def test_a_signal_to_one_ends_all_at_the_same_step():
    def task(rank):
        step, taken = loop.take_step, []

        def asked(*given):
            taken.append(1)
            if rank == 1 and len(taken) == 5:
                signal.raise_signal(signal.SIGTERM)
            return step(*given)

        loop.take_step = asked
        model = distributed.fit(estimator("gaussian"), *observations("gaussian"))
        return model.history_.stop_reason, len(taken), model.latent_mean_

    (_, first), (_, second) = run_ranks(2, task)
    assert first[:2] == second[:2] == ("interrupted", 5)
    np.testing.assert_array_equal(first[2], second[2])


def test_an_error_of_the_first_is_that_of_all():
    def task(rank):
        with pytest.raises(manygp.DataError) as found:
            distributed.fit(estimator("counts"), *observations("gaussian"))
        return str(found.value)

    (_, first), (_, second) = run_ranks(2, task)
    assert first == second
    assert "counts" in first


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        (manygp.OILMM(), {}, "OILMM is fitted by one process: use TLVMOGP, or leave torchrun out."),
        (manygp.TLVMOGP(), {"output_coordinates": [0.0]}, "output_coordinates need latent vectors of all outputs"),
    ],
)
def test_what_one_process_must_see_as_a_whole_is_refused(model, settings, sentence, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(manygp.SettingError, match=sentence):
        distributed.fit(model, np.zeros((3, 1)), np.zeros((3, 2)), **settings)


def test_without_torchrun_it_is_a_fit(monkeypatch):
    monkeypatch.setattr(manygp.OILMM, "fit", lambda self, *data, **settings: (self, data, settings))
    model = manygp.OILMM()
    assert distributed.fit(model, 1, y=2) == (model, (1,), {"y": 2})
    assert distributed.is_first()


# -- predictions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few cells, so that there are several for each rank."""
    monkeypatch.setattr("manygp.estimators.estimator._CHUNK_NUMBERS", 60)
    monkeypatch.setattr("manygp.prediction._PART_CELLS", 25)


def answers(model, X, Y, folder):
    """All that ranks answer together, and what is written."""
    dist = distributed.predict_dist(model, X)
    found = {"mean": dist.mean, "quantiles": dist.quantile([0.1, 0.5]), "log_prob": dist.log_prob(Y)}
    found["draws"] = dist.sample(2, random_state=1)
    found["draws of cells"] = dist.sample(2, random_state=1, independent=True)
    found |= distributed.evaluate(model, X, Y)
    for suffix in (".csv", ".zarr"):
        distributed.predict_to(model, folder / f"written{suffix}", X)
    return found


@pytest.mark.parametrize("name", ESTIMATORS)
def test_ranks_predict_what_one_process_predicts(name, small_chunks, tmp_path):
    """To the bit, of every model, and each rank computes a share."""
    X, Y = attack.table()
    model = attack.small(name).fit(X, Y)
    places = {size: tmp_path / str(size) for size in (1, 2)}
    expected = answers(model, X, Y, places[1])

    def task(rank):
        dist, computed = distributed.predict_dist(model, X), []
        chunks = dist._chunks
        dist._chunks = lambda *given: (computed.append(len(part[0])) or part for part in chunks(*given))
        assert dist.mean.shape == Y.shape
        return answers(model, X, Y, places[2]), sum(computed)

    results = run_ranks(2, task)
    assert [how for how, _ in results] == ["done", "done"], results
    shares = [share for _, (_, share) in results]
    assert sum(shares) == Y.size
    assert min(shares) > 0
    for _, (found, _) in results:
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    assert (places[2] / "written.csv").read_bytes() == (places[1] / "written.csv").read_bytes()
    one, two = (xarray.open_zarr(place / "written.zarr", consolidated=False).load() for place in places.values())
    assert one.identical(two)


def test_a_file_that_cannot_be_written_is_an_error_of_all(small_chunks, tmp_path, monkeypatch):
    X, Y = attack.table()
    model = attack.small("ind-gp").fit(X, Y)
    monkeypatch.setattr("manygp.data.streams._append_csv", fails_after_a_part)

    def task(rank):
        with pytest.raises(manygp.DataError, match="cannot be written") as found:
            distributed.predict_to(model, tmp_path / "written.csv", X)
        # And they go on together.
        return str(found.value), distributed.predict_dist(model, X).mean

    (_, first), (_, second) = run_ranks(2, task)
    assert first[0] == second[0]
    np.testing.assert_array_equal(first[1], second[1])
    assert not list(tmp_path.iterdir())


def fails_after_a_part(frames):
    def write(to):
        next(iter(frames))
        raise OSError(28, "No space left on device")

    return write


def test_a_dead_rank_ends_a_prediction_in_seconds(small_chunks):
    X, Y = attack.table()
    model = attack.small("ind-gp").fit(X, Y)

    def task(rank):
        dist = distributed.predict_dist(model, X)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(manygp.RankError, match=r"^Another rank is gone "):
            _ = dist.mean

    started = time.monotonic()
    assert [how for how, _ in run_ranks(2, task)] == ["done", "dead"]
    assert time.monotonic() - started < 30.0
