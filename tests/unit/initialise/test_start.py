"""What a model begins with: lengthscales from evidence, sizes, scaling, latents, Z and noise from the data."""

import numpy as np
import pytest
import torch

import manygp
from manygp.data import Cells, Grid, Scaling
from manygp.data.factorisation import factorise
from manygp.estimators import tlvmogp_start, trained
from manygp.initialise import (
    Lengthscales,
    choose_latent_dim,
    choose_num_inducing,
    choose_scaling,
    evidence_lengthscales,
    find_lengthscales,
    find_noise_spread,
    latent_dim_of,
)
from manygp.kernels import cross_covariance
from manygp.likelihoods import Gaussian
from manygp.training import History

from ...laws import worlds
from ...tolerances import assert_close


def draws(rng, n=60, p=6, lengthscale=(0.3,), noise=0.1):
    """Independent draws of a GP on inputs in the unit cube."""
    X = rng.uniform(size=(n, len(lengthscale)))
    distance = (((X[:, None] - X[None]) / np.array(lengthscale)) ** 2).sum(-1)
    L = np.linalg.cholesky(np.exp(-0.5 * distance) + 1e-8 * np.eye(n))
    return Grid(X, L @ rng.standard_normal((n, p)) + noise * rng.standard_normal((n, p)))


def low_rank(rng, rank=2, n=40, p=30, missing=0.3):
    Y = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, p)) + 0.05 * rng.standard_normal((n, p))
    Y[rng.uniform(size=Y.shape) < missing] = np.nan
    return Grid(np.arange(float(n))[:, None], Y)


def as_cells(grid):
    row, output = np.nonzero(~np.isnan(grid.Y))
    return Cells(grid.X[row], output, grid.Y[row, output], grid.output_names)


# -- lengthscales ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengthscale", [0.1, 0.5])
def test_lengthscales_and_noise_are_found(rng, lengthscale):
    table = draws(rng, lengthscale=(lengthscale,))
    for source in (table, as_cells(table)):
        scaling = Scaling.fit(source, inputs=True, outputs="none")
        found = evidence_lengthscales(source, scaling, rng)
        assert found.lengthscale[0] * scaling.x_scale[0] == pytest.approx(lengthscale, rel=0.4)
        assert found.noise == pytest.approx(0.01, rel=0.6)
        assert found.signal > 0


def test_an_input_that_does_not_matter_has_a_long_lengthscale(rng):
    table = draws(rng, lengthscale=(0.3, 1e6))
    found = evidence_lengthscales(table, worlds.raw(table), rng)
    assert found.lengthscale[1] > 3 * found.lengthscale[0]


def test_the_noise_does_not_exceed_what_is_known(rng):
    table = draws(rng, noise=0.5)
    assert evidence_lengthscales(table, worlds.raw(table), rng, max_noise=0.01).noise <= 0.01


def test_what_may_as_well_be_noise_is_noise_within_a_tolerance(rng):
    white = Grid(rng.uniform(0.0, 1.0, (80, 1)), rng.standard_normal((80, 6)))
    found = evidence_lengthscales(white, Scaling.fit(white), np.random.default_rng(0), tolerance=0.01)
    short = evidence_lengthscales(white, Scaling.fit(white), np.random.default_rng(0))
    assert found.noise > max(0.8, short.noise)
    assert found.lengthscale[0] > 2.0 * short.lengthscale[0]
    smooth = draws(rng, lengthscale=(0.3,))
    plain = evidence_lengthscales(smooth, worlds.raw(smooth), np.random.default_rng(0))
    close = evidence_lengthscales(smooth, worlds.raw(smooth), np.random.default_rng(0), tolerance=0.01)
    assert close.lengthscale[0] == pytest.approx(plain.lengthscale[0], rel=0.2)


@pytest.mark.parametrize(
    "Y",
    [np.zeros((5, 3)), np.ones((5, 1)), np.array([[1.0]]), np.array([[1.0, np.nan], [np.nan, 2.0]])],
    ids=["zeros", "constant", "one cell", "one cell each"],
)
def test_poor_data_give_usable_numbers(rng, Y):
    table = Grid(np.linspace(0, 1, len(Y))[:, None], Y)
    found = evidence_lengthscales(table, worlds.raw(table), rng, max_noise=0.0)
    assert np.isfinite(found.lengthscale).all()
    assert (found.lengthscale > 0).all()
    assert found.noise > 0
    assert found.signal > 0


# -- sizes and scaling -------------------------------------------------------------------------------------------------


def test_the_latent_dimensions_suffice_for_the_rank_of_the_data(rng):
    table = low_rank(rng, n=25, p=6)
    assert choose_latent_dim(table, Scaling.fit(table), rng) >= 2
    assert choose_latent_dim(Grid(table.X, table.Y[:, :1]), worlds.raw(table), rng) == 1
    assert choose_latent_dim(as_cells(table), worlds.raw(table), rng) >= 1


@pytest.mark.parametrize(("rank", "p", "dim"), [(1, 30, 3), (8, 30, 8), (1, 3, 2), (1, 1, 1)])
def test_latent_dimensions_are_not_too_few(rng, rank, p, dim):
    assert latent_dim_of(rank, low_rank(rng, p=p)) == dim


def test_rough_functions_have_more_inducing_points(rng):
    table = Grid(np.linspace(0, 1, 500)[:, None], rng.standard_normal((500, 3)))
    sizes = [
        choose_num_inducing(table, worlds.raw(table), 2, Lengthscales(np.array([lengthscale]), 1.0, 0.1))
        for lengthscale in (10.0, 0.05, 0.01, 1e-6)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2]


def test_rough_functions_in_a_small_table_have_a_point_for_most_cells(rng):
    table = Grid(np.linspace(0, 1, 100)[:, None], rng.standard_normal((100, 6)))
    found = Lengthscales(np.array([0.01]), 1.0, 0.1)
    assert choose_num_inducing(table, worlds.raw(table), 4, found) >= 0.8 * table.num_observed


def test_never_more_inducing_points_than_cells(rng):
    table = Grid(np.arange(3.0)[:, None], np.array([[1.0], [np.nan], [2.0]]))
    assert choose_num_inducing(table, worlds.raw(table), 1, Lengthscales(np.array([1e-3]), 1.0, 0.1)) == 2


@pytest.mark.parametrize("kind", ["output", "global", "completed", "none"])
def test_a_scaling_that_is_asked_for_is_taken(rng, kind):
    table = low_rank(rng)
    choice = choose_scaling(table, (kind,), 2, rng)
    assert choice.kind == kind
    if kind != "completed":
        expected = Scaling.fit(table, inputs=kind != "none", outputs=kind)
        assert np.array_equal(choice.scaling.y_scale, expected.y_scale)


def test_outputs_in_different_units_are_not_given_one_scale(rng):
    table = low_rank(rng)
    units = 10.0 ** rng.uniform(-3, 3, size=table.num_outputs)
    choice = choose_scaling(Grid(table.X, table.Y * units), ("global", "output"), 2, rng)
    assert choice.kind == "output"


def test_equal_errors_in_outputs_of_unequal_spread_call_for_one_scale(rng):
    """One noise for all cells is what the model assumes, so the scale follows the errors and not the spread."""
    table = low_rank(rng)
    spread = np.where(np.arange(table.num_outputs) % 2 == 0, 1.0, 8.0)
    Y = table.Y * spread + 0.5 * rng.standard_normal(table.Y.shape)
    assert choose_scaling(Grid(table.X, Y), ("global", "output"), 2, rng).kind == "global"


def test_noise_is_a_share_of_the_held_out_error_at_least(rng):
    table = low_rank(rng)
    factors = factorise(table, worlds.raw(table), 2, rng=rng)
    found = find_lengthscales(table, worlds.raw(table), factors, 5.0, rng)
    assert found.noise == pytest.approx(0.5)
    assert find_lengthscales(table, worlds.raw(table), factors, 0.0, rng).noise < 0.5


def noisy(rng, deviation, n=60, p=40):
    """Two factors, and noise whose log variance differs between outputs by draws of so large a deviation."""
    log_noise = deviation * rng.standard_normal(p)
    noise = 0.3 * np.exp(0.5 * log_noise) * rng.standard_normal((n, p))
    return log_noise, Grid(np.arange(float(n))[:, None], low_rank(rng, 2, n, p, 0.0).Y + noise)


def test_unequal_noise_is_seen_and_equal_noise_is_not_made_unequal(rng):
    log_noise, table = noisy(rng, 1.0)
    scaling = Scaling.fit(table, outputs="global")
    spread = find_noise_spread(table, scaling, factorise(table, scaling, 2))
    assert not spread.is_negligible
    assert 0.5 < spread.variance < 2.0
    assert np.corrcoef(spread.deviation, log_noise)[0, 1] > 0.9
    _, table = noisy(rng, 0.0)
    assert find_noise_spread(table, scaling, factorise(table, scaling, 2)).is_negligible


def test_few_outputs_may_have_any_noise(rng):
    _, table = noisy(rng, 1.0, p=3)
    scaling = Scaling.fit(table, outputs="global")
    spread = find_noise_spread(table, scaling, factorise(table, scaling, 2))
    assert spread.variance == 1.0
    assert not spread.deviation.any()


def test_unequal_noise_is_learned(rng):
    log_noise, table = noisy(rng, 1.5)
    model = manygp.TLVMOGP(epochs=10, progress=False).fit(table.X, table.Y)
    assert model.likelihood_ == "pooled-gaussian"
    learned = model.model_.likelihood.deviation.detach().numpy() + 2.0 * np.log(model.scaling_.y_scale)
    loud = log_noise > np.median(log_noise)
    difference = learned[loud].mean() - learned[~loud].mean()
    assert 0.5 < difference / (log_noise[loud].mean() - log_noise[~loud].mean()) < 1.2
    one = manygp.TLVMOGP(epochs=10, progress=False, likelihood=Gaussian()).fit(table.X, table.Y)
    assert one.likelihood_ == "gaussian"


def test_a_list_of_cells_cannot_be_completed(rng):
    cells = as_cells(low_rank(rng))
    assert choose_scaling(cells, ("completed",), 2, rng).kind != "completed"


# -- starts: `start_from_data` and `start_from_prior`, seen through an estimator that does not train -------------------


@pytest.fixture
def started(monkeypatch):
    """A function that returns the model at its start, and its scaling."""

    def untrained(model, *arguments, **keywords):
        model.train(False)
        return History()

    monkeypatch.setattr(trained, "train", untrained)

    def begin(table, **settings):
        sizes = {"latent_dim": 2, "num_inducing": 8, "standardize": "output", "device": "cpu", "progress": False}
        estimator = manygp.TLVMOGP(**(sizes | settings))
        if isinstance(table, Grid):
            estimator.fit(table.X, table.Y)
        else:
            estimator.fit_cells(table.X, table.output, table.y)
        return estimator.model_, estimator.scaling_

    return begin


@pytest.mark.parametrize("latent_posterior", ["full", "diagonal", "point"])
@pytest.mark.parametrize("given_prior", [False, True])
@pytest.mark.parametrize("layout", ["grid", "cells"])
def test_a_start_from_data_is_sound(rng, monkeypatch, started, latent_posterior, given_prior, layout):
    monkeypatch.setattr(Cells, "compact", lambda self: self)
    table = low_rank(rng)
    prior = rng.standard_normal((table.num_outputs, 2)) if given_prior else None
    source = table if layout == "grid" else as_cells(table)
    model, scaling = started(source, latent_posterior=latent_posterior, latent_prior_mean=prior)
    assert (model.units > 0).all()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert model.likelihood.noise.item() > 0
    # Z are embeddings of observed cells.
    row, column = np.nonzero(~np.isnan(table.Y))
    e = worlds.point_embeddings(model, torch.as_tensor(scaling.scale_x(table.X[row])), torch.as_tensor(column))
    nearest = torch.cdist(model.gp.Z.detach(), e).amin(1)
    assert_close(nearest, torch.zeros(8), dtype=torch.float32)
    if given_prior:
        assert torch.equal(model.latents.mean, model.latents.prior_mean)


@pytest.mark.parametrize("kind", ["global", "completed", "output"])
def test_the_latent_dimensions_are_those_of_outputs_in_the_units_that_the_model_sees(rng, monkeypatch, kind):
    seen = []

    def choose(table, scaling, rng, **given):
        seen.append(scaling)
        return len(seen) + 3

    monkeypatch.setattr(tlvmogp_start, "choose_latent_dim", choose)
    table = low_rank(rng)
    choice, dim, factors = tlvmogp_start._look_at_values(manygp.TLVMOGP(standardize=kind), table, table, None, rng)
    assert_close(seen[-1].y_scale, choice.scaling.y_scale)
    assert dim == factors.rank == len(seen) + 3


def test_latents_start_at_the_loadings(rng, started):
    table = low_rank(rng)
    model, scaling = started(table)
    # Outputs with like columns have like latents: the latents explain the columns linearly.
    Y = np.nan_to_num(scaling.scale_y(table.Y))
    H = np.column_stack([model.latents.mean.detach().numpy(), np.ones(table.num_outputs)])
    residual = Y.T - H @ np.linalg.lstsq(H, Y.T, rcond=None)[0]
    assert residual.var() < 0.5 * Y.var()


@pytest.mark.filterwarnings("ignore:1 of 30 outputs have no observed cell")
def test_outputs_without_observations_start_at_their_prior(rng, started):
    table = low_rank(rng)
    Y = table.Y.copy()
    Y[:, 3] = np.nan
    model, _ = started(Grid(table.X, Y))
    assert_close(model.latents.kl(torch.tensor([3])), torch.zeros(1))


def test_the_published_start(rng, started):
    model, scaling = started(low_rank(rng), preset="paper", num_inducing=400, standardize=True)
    assert model.likelihood.noise.item() == pytest.approx(1e-4, rel=1e-6)
    assert float(model.gp.Z.detach().mean().abs()) < 0.1
    assert float(model.gp.Z.detach().std()) == pytest.approx(1.0, abs=0.1)
    # Raw inputs, one scale for all outputs, softplus(0) for the kernel, q at the prior.
    assert scaling.x_scale.tolist() == [1.0]
    assert len(set(scaling.y_scale)) == 1
    assert_close(model.units, torch.ones(3))
    kernel = (model.gp.kernel.outputscale, model.gp.kernel.base_kernel.lengthscale)
    assert all(torch.allclose(value, torch.tensor(2.0).log().double()) for value in kernel)
    assert_close(model.latents.kl(torch.arange(30)), torch.zeros(30))
    assert_close(model.gp.posterior.moments().kl(), 0.0)


def test_copies_of_one_function_start_alike(started):
    """Nothing tells the outputs apart, so the start takes hardly any difference between latent vectors for one."""
    X = np.linspace(0.0, 10.0, 50)[:, None]
    Y = np.sin(X) * np.ones((1, 20))
    Y[np.random.default_rng(0).random(Y.shape) < 0.3] = np.nan
    model, _ = started(Grid(X, Y), standardize="global")
    x = torch.zeros(2, 1, dtype=torch.float64)
    far = torch.zeros(2, model.latents.dim, dtype=torch.float64)
    far[1] = 1.0
    with torch.no_grad():
        K = cross_covariance(model.gp.kernel, model.embed(x, far), model.embed(x, far))
    assert float(K[0, 0] + K[1, 1] - 2.0 * K[0, 1]) < 1e-2
