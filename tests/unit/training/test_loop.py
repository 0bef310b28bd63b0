"""The loop: what moves, what stays, how it ends."""

import math

import numpy as np
import pytest
import torch

from manygp.data import GridPlan
from manygp.errors import NumericalError
from manygp.exchange import ALONE
from manygp.training import Schedule, Trainable, TrainingSettings, make_progress, settle, train
from manygp.training.step import _clip
from manygp.variational import CellBatch, ElboTerms, Latents

from ...laws import worlds
from ...tolerances import assert_close

PRESETS = {
    "natural steps, sparse rows": TrainingSettings(),
    "gradients only": TrainingSettings(natural=False, schedule=False, sparse_rows=False),
}


class Watcher:
    """A progress display that calls a function after each epoch."""

    def __init__(self, function=lambda epoch: None):
        self.function, self.epochs = function, []

    def __enter__(self):
        return self

    def __exit__(self, *exception): ...

    def update(self, epoch, total, bound_per_cell):
        self.epochs.append((epoch, total, bound_per_cell))
        self.function(epoch)


def world(rng, settings, latent_posterior="full", **parts):
    """A table and a model that fits the settings."""
    table = worlds.random_grid(rng, num_inputs=8, num_outputs=6)
    posterior = "natural" if settings.natural else "cholesky"
    model = worlds.random_model(
        rng, num_outputs=6, posterior=posterior, latent_posterior=latent_posterior, given_prior=False, **parts
    )
    old = model.latents
    model.latents = Latents(6, 2, latent_posterior, sparse=settings.sparse_rows)
    model.latents.load_state_dict(old.state_dict())
    return table, model


def fit(table, model, settings, epochs=4, progress=None, plan=None, learning_rate=0.02, **batch):
    plan = plan or GridPlan(table, worlds.raw(table), **batch)
    schedule = Schedule(len(plan), learning_rate, epochs, epochs)
    progress = progress or Watcher()
    return train(model, plan, schedule, settings, dtype=torch.float64, device=worlds.CPU, seed=0, progress=progress)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("latent_posterior", ["full", "diagonal", "point"])
def test_the_bound_rises(rng, preset, latent_posterior):
    settings = PRESETS[preset]
    table, model = world(rng, settings, latent_posterior)
    watcher = Watcher()
    history = fit(table, model, settings, 20, watcher, batch_outputs=3)
    assert history.stop_reason == "epochs"
    assert history["epoch"] == list(range(1, 21))
    assert np.mean(history["bound"][-5:]) > np.mean(history["bound"][:5])
    for record in history.records:
        assert record.bound == pytest.approx(record.expected_log_lik - record.kl_u - record.kl_h)
    assert watcher.epochs[-1] == (20, 20, history["bound"][-1] / table.num_observed)


@pytest.mark.parametrize("preset", PRESETS)
def test_everything_learns(rng, preset):
    settings = PRESETS[preset]
    table, model = world(rng, settings)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(table, model, settings)
    still = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert still <= {"units", "reach", "latents.unit"} | {
        name for name in before if "constraint" in name or "prior" in name
    }


def test_the_model_is_left_ready_for_predictions(rng):
    table, model = world(rng, TrainingSettings())
    fit(table, model, TrainingSettings(frozen_epochs=math.inf))
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_likelihood_that_was_fixed_stays_fixed(rng):
    table, model = world(rng, TrainingSettings())
    model.likelihood.requires_grad_(False)
    start = model.likelihood.noise.item()
    fit(table, model, TrainingSettings())
    assert model.likelihood.noise.item() == start
    assert not any(parameter.requires_grad for parameter in model.likelihood.parameters())


@pytest.mark.parametrize(("frozen", "moves"), [(0, True), (2, True), (4, False), (math.inf, False)])
def test_a_frozen_likelihood_stays_for_its_epochs(rng, frozen, moves):
    settings = TrainingSettings(frozen_epochs=frozen)
    table, model = world(rng, settings)
    noises, start = [], model.likelihood.noise.item()
    fit(table, model, settings, 4, Watcher(lambda epoch: noises.append(model.likelihood.noise.item())))
    for epoch, noise in enumerate(noises, 1):
        assert (noise == start) == (epoch <= frozen)
    assert (noises[-1] != start) == moves


def test_a_step_touches_the_rows_of_its_outputs_only(rng):
    """So that its cost does not grow with the number of outputs."""
    settings = TrainingSettings()
    table, model = world(rng, settings)
    before = model.latents.mean.detach().clone()
    plan = GridPlan(table, worlds.raw(table), batch_outputs=2)

    class First(GridPlan):
        def epoch(self, rng):
            yield plan.batch(np.arange(table.num_inputs), np.array([1, 4]))

    fit(table, model, settings, 1, plan=First(table, worlds.raw(table)))
    moved = (model.latents.mean.detach() != before).any(-1)
    assert moved.tolist() == [False, True, False, False, True, False]


# -- endings -----------------------------------------------------------------------------------------------------------


def interrupt(*arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("preset", PRESETS)
def test_ctrl_c_between_epochs_keeps_what_was_learnt(rng, preset):
    settings = PRESETS[preset]
    table, model = world(rng, settings)
    state = {}

    def stop(epoch):
        if epoch == 3:
            state.update({name: value.clone() for name, value in model.state_dict().items()})
            raise KeyboardInterrupt

    history = fit(table, model, settings, 50, Watcher(stop))
    assert history.stop_reason == "interrupted"
    assert len(history) == 3
    assert not model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_ctrl_c_within_an_epoch_keeps_what_was_learnt(rng):
    settings = TrainingSettings(frozen_epochs=10)
    table, model = world(rng, settings)

    class Stopped(GridPlan):
        def epoch(self, rng):
            batches = super().epoch(rng)
            yield next(batches)
            raise KeyboardInterrupt

    before = model.gp.Z.detach().clone()
    history = fit(table, model, settings, plan=Stopped(table, worlds.raw(table), 2, 2))
    assert history.stop_reason == "interrupted"
    assert len(history) == 0
    assert not torch.equal(model.gp.Z, before)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.likelihood.parameters())


def test_other_errors_are_not_swallowed(rng):
    table, model = world(rng, TrainingSettings())

    def broken(epoch):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        fit(table, model, TrainingSettings(), progress=Watcher(broken))


class Diverging(torch.nn.Module):
    """The least that the loop needs of a model, with a bound that is no number."""

    def __init__(self):
        super().__init__()
        self.likelihood = torch.nn.Module()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def elbo(self, batch, generator):
        value = (self.weight * math.inf).sum()
        return ElboTerms(value, value, value)

    def row_parameters(self):
        return iter(())

    row_units = row_parameters


def test_a_bound_that_is_no_number_is_reported(rng):
    model: Trainable = Diverging()
    table = worlds.random_grid(rng)
    with (
        pytest.warns(UserWarning, match="goes back to step 0 with a learning rate of 0.00"),
        pytest.raises(NumericalError, match="bound became nan in epoch 1: lower learning_rate"),
    ):
        fit(table, model, PRESETS["gradients only"], progress=make_progress(False))


class Cliff(Diverging):
    """A bound that rises with its parameters, until one of them is too large for anything to be computed."""

    def __init__(self, edge):
        super().__init__()
        self.edge, self.still = edge, torch.nn.Parameter(torch.full((1,), 5.0, dtype=torch.float64))

    def elbo(self, batch, generator):
        height = (self.weight + 0.01 * self.still).sum()
        value = height if self.weight.item() < self.edge else math.nan * height
        return ElboTerms(value, 0.0 * value, 0.0 * value)


def test_a_run_goes_back_with_smaller_steps_where_numbers_end(rng):
    table, model = worlds.random_grid(rng), Cliff(0.3)
    with pytest.warns(UserWarning, match="no longer finite in epoch 3.: training goes back to step 0"):
        history = fit(table, model, PRESETS["gradients only"], 40, learning_rate=0.01)
    assert len(history) == 40
    assert np.isfinite(history["bound"]).all()
    assert 0.0 < model.weight.item() < 0.3


def test_a_run_that_cannot_go_on_names_the_parameter_that_went_wrong(rng):
    table, model = worlds.random_grid(rng), Cliff(0.3)
    with (
        pytest.warns(UserWarning, match="goes back"),
        pytest.raises(NumericalError, match=r"bound became nan in epoch 7: .* What went wrong first is weight."),
    ):
        fit(table, model, PRESETS["gradients only"], 40, learning_rate=0.6)


# -- clipping and averaging --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_gradients_are_clipped_together(rng, sparse, max_norm):
    rows, rest = Latents(5, 2, sparse=sparse), torch.nn.Linear(2, 2).double()
    outputs = torch.tensor([1, 1, 3])
    (rest(rows.means(outputs) + 1.0).square().sum() + rows.means(outputs).sum()).backward()
    parameters = [rows.mean, *rest.parameters()]
    before = [parameter.grad.to_dense().clone() for parameter in parameters]
    norm = torch.cat([gradient.flatten() for gradient in before]).norm()
    _clip(parameters[:1], parameters[1:], max_norm, ALONE)
    factor = min(1.0, max_norm / float(norm))
    for parameter, gradient in zip(parameters, before, strict=True):
        torch.testing.assert_close(parameter.grad.to_dense(), factor * gradient, rtol=1e-5, atol=0)


def test_seeds_reproduce():
    runs = []
    for _ in range(2):
        table, model = world(np.random.default_rng(1), TrainingSettings())
        runs.append(fit(table, model, TrainingSettings(), batch_inputs=3, batch_outputs=2)["bound"])
    assert runs[0] == runs[1]


def test_settled_inducing_variables_are_at_their_optimum(rng):
    """One pass over small batches, from anywhere, is the whole step on all cells at once."""
    table, model = world(rng, TrainingSettings(), "point")
    parts, whole = GridPlan(table, worlds.raw(table), 3, 2), GridPlan(table, worlds.raw(table), None, None)
    bounds = [settle(model, plan, dtype=torch.float64, device=worlds.CPU, seed=0) for plan in (whole, parts)]
    found = model.gp.posterior.theta.clone(), model.gp.posterior.precision.clone()
    batch = next(iter(whole.epoch(np.random.default_rng(0))))
    cells = CellBatch.from_arrays(batch, torch.float64, worlds.CPU)
    terms = model.natural_elbo(cells, torch.Generator(), 1.0)
    assert_close(found[0], model.gp.posterior.theta)
    assert_close(found[1], model.gp.posterior.precision)
    assert_close(bounds, [float(terms.bound.detach()) / table.num_observed] * 2)
