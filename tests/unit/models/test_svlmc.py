"""Parts of SV-LMC: weights, the solver of its natural step, and where it begins."""

import numpy as np
import pytest
import torch

from manygp.data import Grid, Scaling
from manygp.data.factorisation import factorise
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.inducing import greedy_inducing
from manygp.initialise.processes import choose_num_points, place_points, start_processes, variance_left
from manygp.initialise.series import Series, factor_series, series_kernels, weight_variance
from manygp.initialise.svlmc import initialise
from manygp.kernels import make_kernel
from manygp.likelihoods import Gaussian
from manygp.models.svlmc import LinearMixingModel, Mixing, MixingPredictor, mixed_moments
from manygp.variational import InducingGP, KernelBatch, NaturalPosterior
from manygp.variational.layout import CellGrid

from ...laws import worlds
from ...tolerances import assert_close


def low_rank_table(rng, num_inputs=25, num_outputs=12, rank=2, missing=0.2):
    """Outputs that mix smooth series of different lengthscale, with a common mean and little noise."""
    X = np.linspace(0, 1, num_inputs)[:, None]
    series = np.column_stack([np.sin(2 * X), np.sin(25 * X + 1.0), np.cos(9 * X)])[:, : rank + 1]
    weights = np.column_stack([np.ones(num_outputs), rng.standard_normal((num_outputs, rank))])
    Y = series @ weights.T + 0.05 * rng.standard_normal((num_inputs, num_outputs))
    return Grid(X, np.where(rng.uniform(size=Y.shape) < missing, np.nan, Y))


# -- cells and weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 40])
def test_cells_mix_and_collect_whatever_the_grid(rng, size):
    """A full grid and a nearly empty one take different ways to the same numbers."""
    row, column = torch.as_tensor(rng.integers(size, size=15)), torch.as_tensor(rng.integers(size, size=15))
    cells = CellGrid(row, column, size, size)
    assert cells.is_filled == (size == 3)
    G, W, values = worlds.normal(rng, size, 4), worlds.normal(rng, size, 4), worlds.normal(rng, 15)
    assert_close(cells.mix(G, W), (G[row] * W[column]).sum(-1))
    expected = torch.zeros(size, 4, dtype=torch.float64)
    for i in range(15):
        expected[row[i]] += values[i] * W[column[i]]
    assert_close(cells.collect(values, W), expected)


@pytest.mark.parametrize("sparse", [True, False])
def test_weights_of_some_outputs(rng, sparse):
    mixing, outputs = worlds.shake(Mixing(5, 3, "diagonal", sparse=sparse), rng), torch.tensor([4, 1])
    mean, variance = mixing.moments(outputs)
    assert_close(mean, mixing.mean[outputs])
    assert_close(variance, (2.0 * mixing.log_std[outputs]).exp())
    (mean.sum() + variance.sum()).backward()
    assert mixing.mean.grad.is_sparse == mixing.log_std.grad.is_sparse == sparse
    point = Mixing(5, 3, "point")
    assert not point.moments(outputs)[1].any()
    assert not point.kl(*point.moments(outputs)).any()
    assert point.log_std.numel() == 0


def test_moments_of_products(rng):
    level, spread = worlds.normal(rng, 2, 1), worlds.normal(rng, 2, 1).abs()
    W, s = worlds.normal(rng, 1, 2), worlds.normal(rng, 1, 2).abs()
    cells = CellGrid(torch.tensor([0]), torch.tensor([0]), 1, 1)
    mean, variance = mixed_moments(cells, level, spread, W, s)
    second = torch.diag(s[0]) + torch.outer(W[0], W[0])
    expected = (second * (torch.diag(spread[:, 0]) + torch.outer(level[:, 0], level[:, 0]))).sum() - mean**2
    assert_close(variance, expected)


def test_parameters_are_counted_as_in_the_paper():
    """L P + L M D + L M + L M², appendix I, without kernels and likelihood."""
    from manygp.variational import CholeskyPosterior

    P, L, m, d = 7, 3, 5, 2
    processes = InducingGP(KernelBatch("rbf", d, L), torch.zeros(L, m, d), CholeskyPosterior(L, m))
    model = LinearMixingModel(processes, Gaussian(), Mixing(P, L))
    counted = {name: p.numel() for name, p in model.named_parameters() if "kernel" not in name and "noise" not in name}
    assert model.num_parameters == sum(counted.values()) == L * P + L * m * d + L * m + L * m**2
    assert isinstance(model.predictor(1, 0), MixingPredictor)


# -- the start ---------------------------------------------------------------------------------------------------------


def test_series_are_the_factorisation_with_its_mean_as_a_factor(rng):
    table = low_rank_table(rng)
    scaling = Scaling.fit(table, outputs="global")
    factors = factorise(table, scaling, 2)
    seen = np.ones(12, dtype=bool)
    series = factor_series(factors, 3, seen, rng)
    assert isinstance(series, Series)
    np.testing.assert_allclose(series.F @ series.W.T, factors.predict(), atol=1e-10)
    np.testing.assert_allclose(series.W.T @ series.W / 12, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(np.square(series.F).mean(0), series.variance)
    wide = factor_series(factors, 6, seen, rng)
    np.testing.assert_allclose(wide.F[:, :3], series.F)
    assert not wide.F[:, 3:].any()
    assert (wide.variance > 0).all()
    assert np.linalg.matrix_rank(wide.W) == 6
    short = factor_series(factors, 1, seen, rng)
    np.testing.assert_allclose(np.abs(short.F[:, 0]), np.abs(series.F[:, 0]))


def test_kernels_follow_their_series(rng):
    table = low_rank_table(rng, num_inputs=60, rank=1)
    scaling = Scaling.fit(table, outputs="global")
    X = table.X
    F = np.column_stack([np.sin(2 * X), 3.0 * np.sin(30 * X)])
    series = Series(F, np.ones((12, 2)))
    found = Lengthscales(np.array([0.5]), 1.0, 0.01)
    lengthscale, outputscale = series_kernels(KernelBatch("rbf", 1, 2), table, scaling, series, found, rng)
    assert lengthscale[0, 0] > 3.0 * lengthscale[1, 0]
    assert outputscale[1] > outputscale[0]
    assert KernelBatch("matern32", 1, 2).name == "matern32"
    assert KernelBatch("rbf", 1, 2).name == "rbf"


def test_variances_of_weights_are_what_cells_leave_open(rng):
    table = low_rank_table(rng)
    series = Series(rng.standard_normal((25, 2)), np.ones((12, 2)))
    found = weight_variance(table, series, 0.1)
    for p in range(12):
        seen = ~np.isnan(table.Y[:, p])
        np.testing.assert_allclose(found[p], 1.0 / (1.0 + np.square(series.F[seen]).sum(0) / 0.1))


def random_processes(kernel, size, num_points):
    return InducingGP(
        KernelBatch(kernel, 1, size, True), torch.zeros(size, num_points, 1), NaturalPosterior(size, num_points)
    )


def test_a_started_model_is_close_before_training(rng):
    table = low_rank_table(rng)
    scaling = Scaling.fit(table, outputs="global")
    factors, found = factorise(table, scaling, 2), Lengthscales(np.array([0.3]), 1.0, 0.01)
    model = LinearMixingModel(
        random_processes("rbf", 3, 20), Gaussian(), Mixing(12, 3, "diagonal", True), torch.zeros(12, 1)
    )
    initialise(model, worlds.survey_of(table, rng), found, factors)
    with torch.no_grad():
        model.natural_elbo(
            worlds.whole_batch(Grid(scaling.scale_x(table.X), scaling.scale_y(table.Y))), worlds.generator(), 1.0
        )
    row, output = np.nonzero(~np.isnan(table.Y))
    mean, _ = model.predictor(1, 0)(torch.as_tensor(scaling.scale_x(table.X[row])), torch.as_tensor(output))
    y = scaling.scale_y(table.Y)[row, output]
    assert np.mean((mean[0].numpy() - y) ** 2) < 0.05 * y.var()


def test_points_are_those_of_every_kernel_by_itself(rng):
    kernels = worlds.shake(KernelBatch("rbf", 2, 3), rng)
    candidates = worlds.normal(rng, 30, 2)
    found = greedy_inducing(kernels, candidates, 6)
    for i in range(3):
        kernel = make_kernel("rbf", 2)
        with torch.no_grad():
            for key, parameter in kernel.named_parameters():
                parameter.copy_(dict(kernels.kernel.named_parameters())[key][i])
        assert torch.equal(found[i], greedy_inducing(kernel, candidates, 6))


def test_points_and_what_they_leave_open(rng):
    table = low_rank_table(rng)
    scaling = Scaling.fit(table)
    found = Lengthscales(np.array([0.4]), 2.0, 0.01)
    left = []
    for m in (2, 8, 25):
        processes = random_processes("rbf", 2, m)
        start_processes(processes, table, scaling, found, rng)
        assert processes.units.tolist() == [0.4]
        inputs = {round(float(x), 9) for x in scaling.scale_x(table.X)[:, 0] / 0.4}
        assert {round(float(z), 9) for z in processes.Z.detach().flatten()} <= inputs
        left.append(variance_left(processes, table, scaling)[0].item())
    assert 2.0 > left[0] > left[1] > left[2]
    assert left[2] < 1e-4
    before = processes.Z.clone()
    place_points(processes, table, scaling, rng)
    assert_close(processes.Z.sort(1).values, before.sort(1).values)
    assert choose_num_points(table, scaling, Lengthscales(np.array([100.0]), 1.0, 0.1)) == 20
    assert choose_num_points(table, scaling, Lengthscales(np.array([0.001]), 1.0, 0.1)) == 25
    assert choose_num_points(table, scaling, Lengthscales(np.array([0.001]), 1.0, 0.1), num_processes=200_000) == 10


def test_levels_of_counts(rng):
    from manygp.likelihoods import NegativeBinomial

    Y = rng.poisson([1.0, 20.0], size=(60, 2)).astype(float)
    table = Grid(np.linspace(0, 1, 60)[:, None], Y)
    model = LinearMixingModel(random_processes("rbf", 1, 4), NegativeBinomial(2), Mixing(2, 1), torch.zeros(2, 1))
    survey = worlds.survey_of(table, rng, model.likelihood, standardize=True)
    initialise(model, survey, Lengthscales(np.ones(1), 1.0, 0.1), None)
    np.testing.assert_allclose(model.bias.detach()[:, 0], survey.levels)
    np.testing.assert_allclose(survey.levels, np.log([1.0, 20.0]), atol=0.5)
