"""Where T-LVMOGP begins: sizes, latents, Z and noise from the survey of a table, or the published start."""

import numpy as np
import pytest
import torch

import manygp
from manygp.data import Cells, Grid
from manygp.estimators import trained
from manygp.initialise import Lengthscales
from manygp.initialise.tlvmogp import choose_num_inducing, choose_sizes
from manygp.kernels import cross_covariance
from manygp.likelihoods import Gaussian
from manygp.training import History

from ...laws import worlds
from ...tolerances import assert_close
from .test_survey import as_cells, low_rank, noisy

# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "p", "dim"), [(1, 30, 3), (8, 30, 8), (1, 3, 2), (1, 1, 1)])
def test_latent_dimensions_are_not_too_few(rng, rank, p, dim):
    """A dimension too many is left unused, one too few makes predictions too sure."""
    sizes = choose_sizes(worlds.survey_of(low_rank(rng, rank=rank, p=p), rng))
    assert sizes.latent_dim == dim


@pytest.mark.parametrize("layout", ["grid", "cells"])
def test_given_sizes_are_taken(rng, layout):
    table = low_rank(rng)
    survey = worlds.survey_of(table if layout == "grid" else as_cells(table), rng)
    sizes = choose_sizes(survey, 5, 17, fixed_noise=0.3)
    assert (sizes.latent_dim, sizes.num_inducing, sizes.found.noise) == (5, 17, 0.3)
    assert sizes.factors.rank == 5
    assert choose_sizes(survey, prior_dim=2).factors is None


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


# -- starts, seen through an estimator that does not train -------------------------------------------------------------


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


@pytest.mark.parametrize("seed", [0, 1])
def test_a_list_of_waves_is_learnt(seed):
    """Outputs that mix two waves, each seen at inputs of its own."""
    rng = np.random.default_rng(seed)
    X, output, W = rng.uniform(size=(700, 1)), rng.integers(20, size=700), rng.standard_normal((2, 20))
    F = np.column_stack([np.sin(30.0 * X), np.cos(20.0 * X)]) @ W
    y = F[np.arange(700), output] + 0.1 * rng.standard_normal(700)
    model = manygp.TLVMOGP(epochs=20, progress=False).fit_cells(X[:500], output[:500], y[:500])
    scores = model.predict_cells(X[500:], output[500:]).score(y[500:])
    assert scores["mse"] < 0.05


# -- neighbours --------------------------------------------------------------------------------------------------------


def test_beside_neighbours_functions_are_those_of_outputs_by_themselves(rng):
    """What looks like noise to factors may be detail that neighbours see; few inducing points are then enough."""
    x = np.linspace(0.0, 1.0, 300)[:, None]
    rough = np.sin(150.0 * x + np.arange(12.0)) + 0.01 * rng.standard_normal((300, 12))
    survey = worlds.survey_of(Grid(x, rough), rng)
    plain, beside = (choose_sizes(survey, has_neighbors=has) for has in (False, True))
    assert beside.num_inducing <= 150 < plain.num_inducing
    assert_close(beside.found.lengthscale, survey.alone.lengthscale)
    assert 1e-6 <= beside.found.noise == min(plain.found.noise, survey.alone.noise)
    assert choose_sizes(survey, num_inducing=200, has_neighbors=True).num_inducing == 200


@pytest.mark.parametrize(
    ("settings", "has"), [({"num_neighbors": 12}, True), ({"num_neighbors": 0}, False)], ids=["neighbours", "none"]
)
def test_terms_begin_with_lengthscales_and_noise_of_the_data(rng, monkeypatch, settings, has):
    """Where there are neighbours, there are terms beside the GP, and the start is not made coarser."""
    coarsened = []
    monkeypatch.setattr("manygp.initialise.tlvmogp.coarsen", lambda *_: coarsened.append(True))
    estimator = manygp.TLVMOGP(latent_dim=2, num_inducing=8, **settings)
    model, _ = estimator._begin(low_rank(rng), np.random.default_rng(0), torch.Generator().manual_seed(0))
    assert bool(coarsened) is not has
    assert len(model.terms) == (3 if has else 0)
    if has:
        assert_close(model.terms[0].kernel.log_lengthscale.exp(), model.units[:1])
        assert_close(model.terms[0].log_variance.center.exp(), model.likelihood.noise)


@pytest.mark.parametrize("settings", [{"likelihood": "student-t"}, {"preset": "paper"}], ids=["likelihood", "paper"])
def test_only_gaussian_noise_has_neighbours(rng, settings):
    estimator = manygp.TLVMOGP(latent_dim=2, num_inducing=8, num_neighbors=12, **settings)
    model, _ = estimator._begin(low_rank(rng), np.random.default_rng(0), torch.Generator().manual_seed(0))
    assert (model.num_neighbors, len(model.terms)) == (0, 0)
