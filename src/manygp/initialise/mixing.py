"""Where linear mixtures of latent processes begin: mixing weights and processes from a factorisation of the table."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Cells, Grid, Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.data.table import FloatArray
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.inducing import sample_cells
from manygp.initialise.processes import place_points, variance_left
from manygp.likelihoods import Gaussian, Likelihood
from manygp.models.exact import Columns, ExactBatch
from manygp.models.indgp import maximise_evidence
from manygp.models.svlmc import LinearMixingModel
from manygp.variational import KernelBatch

__all__ = [
    "Series",
    "factor_series",
    "guessed_functions",
    "series_kernels",
    "start_levels",
    "start_mixing",
    "weight_variance",
]

# Inputs at which the kernels of factors are fitted.
_MAX_INPUTS = 200
# Variance of a process that the data say nothing about, as a share of that of all.
_WEAKEST = 1e-4
_MIN_NOISE = 1e-4
# Standard deviation of weights that start at random.
_RANDOM_STD = 0.1
_SAMPLE_CELLS = 100_000


@torch.no_grad()
def start_mixing(
    model: LinearMixingModel,
    table: Table,
    scaling: Scaling,
    found: Lengthscales,
    factors: Factorisation | None,
    rng: np.random.Generator,
) -> None:
    """Start with weights and kernels from a factorisation, inducing points among the inputs, and its noise.

    Parameters
    ----------
    model
        The model to set.
    table, scaling
        The observations, or guesses of f behind them, and their scaling.
    found
        What the evidence said about the inputs, and the noise.
    factors
        A factorisation of the table, or None: then weights are random.
    rng
        Source of randomness.
    """
    processes, mixing, seen = model.processes, model.mixing, (table.count_per_output() > 0)[:, None]
    processes.units.copy_(torch.as_tensor(found.lengthscale))
    L = processes.kernels.size
    if factors is None:
        weights, std = rng.standard_normal(mixing.mean.shape), np.full(mixing.mean.shape, _RANDOM_STD)
        lengthscale = torch.ones(1, table.num_features, dtype=torch.float64)
        outputscale = torch.full((1,), found.signal / L, dtype=torch.float64)
    else:
        series = factor_series(factors, L, seen[:, 0], rng)
        weights, std = series.W, np.sqrt(weight_variance(table, series, found.noise))
        lengthscale, outputscale = series_kernels(processes.kernels, table, scaling, series, found, rng)
    processes.kernels.rescale(lengthscale, outputscale)
    place_points(processes, table, scaling, rng)
    # The weights of outputs without observations stay at their prior.
    mixing.mean.copy_(torch.as_tensor(np.where(seen, weights, 0.0)))
    if mixing.posterior == "diagonal":
        mixing.log_std.copy_(torch.as_tensor(np.log(np.where(seen, std, 1.0))))
    if isinstance(model.likelihood, Gaussian):
        # Weights have mean square 1, so that what is left open of all processes adds up.
        left = float(variance_left(processes, table, scaling).sum())
        model.likelihood.noise = torch.tensor(max(found.noise + left, _MIN_NOISE), dtype=torch.float64)


@torch.no_grad()
def start_levels(
    model: LinearMixingModel, table: Table, scaling: Scaling, level: FloatArray, rng: np.random.Generator
) -> None:
    """Set the constants of outputs that cannot be centred, and the likelihood around them, from a sample of cells."""
    assert model.bias is not None
    model.bias.copy_(torch.as_tensor(level).unsqueeze(-1))
    _, output, y = sample_cells(table, scaling, _SAMPLE_CELLS, rng)
    which = torch.as_tensor(output)
    model.likelihood.start_from(torch.as_tensor(y), which, model.bias[which, 0])


@torch.no_grad()
def guessed_functions(likelihood: Likelihood, table: Table) -> tuple[Table, FloatArray]:
    """A table of guesses of f less the level of their output, and the levels (p,): counts as if they were measured."""
    row, output, y = table.cells(table.places())
    values, which = torch.as_tensor(y), torch.as_tensor(output)
    level = likelihood.level(values, which, table.num_outputs)
    f = (likelihood.guess(values, which, level) - level.index_select(0, which)).numpy()
    if isinstance(table, Cells):
        return Cells(table.X, table.output, f, table.output_names), level.numpy()
    Y = np.full((table.num_inputs, table.num_outputs), np.nan)
    Y[row, output] = f
    return Grid(table.X, Y, table.output_names), level.numpy()


@dataclass(frozen=True)
class Series:
    """y_np ≈ Σ_l F_nl W_pl with orthogonal columns; those of W have mean square 1 over the observed outputs."""

    F: FloatArray
    W: FloatArray

    @property
    def variance(self) -> FloatArray:
        """Mean square of every column of F, but not less than a small share of all, shape (l,)."""
        power = np.square(self.F).mean(0)
        return np.maximum(power, _WEAKEST * max(float(power.sum()), _WEAKEST))


def factor_series(factors: Factorisation, num_latents: int, seen: np.ndarray, rng: np.random.Generator) -> Series:
    """A factorisation with its row means as a factor among the others, cut to so many columns or filled up.

    Columns beyond the rank have no series; their weights are random, so that no two are the same.

    Parameters
    ----------
    factors
        The factorisation.
    num_latents
        Number of columns.
    seen
        Which outputs have observations, shape (p,); the others have weights of zero.
    rng
        Source of randomness.
    """
    left = np.column_stack([factors.row_mean, factors.row_factors])
    right = np.where(seen[:, None], np.column_stack([np.ones(len(factors.loadings)), factors.loadings]), 0.0)
    q_left, r_left = np.linalg.qr(left)
    q_right, r_right = np.linalg.qr(right)
    u, size, v = np.linalg.svd(r_left @ r_right.T)
    kept = min(num_latents, int((size > 1e-10 * max(size[0], 1e-300)).sum()))
    scale = np.sqrt(max(seen.sum(), 1))
    F, W = np.zeros((len(left), num_latents)), rng.standard_normal((len(right), num_latents))
    F[:, :kept] = q_left @ (u[:, :kept] * size[:kept]) / scale
    W[:, :kept] = scale * q_right @ v[:kept].T
    return Series(F, np.where(seen[:, None], W, 0.0))


def weight_variance(table: Table, series: Series, noise: float) -> FloatArray:
    """(1 + Σ_n F²_nl / σ²)⁻¹ over the cells of every output: what they leave open about its weights, shape (p, l)."""
    assert isinstance(table, Grid)
    power = np.zeros((table.num_outputs, series.F.shape[1]))
    for rows in table.row_chunks():
        power += table.observed(rows).T.astype(np.float64) @ np.square(series.F[rows])
    return 1.0 / (1.0 + power / noise)


def series_kernels(
    like: KernelBatch, table: Table, scaling: Scaling, series: Series, found: Lengthscales, rng: np.random.Generator
) -> tuple[Float[Tensor, "q d"], Float[Tensor, " q"]]:
    """Lengthscales, in units of those found, and output scales of processes by the evidence of their series.

    `like` says of which kind the kernels are; where they are not named ones, RBF kernels are fitted in their place.
    """
    chosen = _subset(scaling.scale_x(table.X), rng)
    x = torch.as_tensor(scaling.scale_x(table.X[chosen]) / found.lengthscale)
    variance = torch.as_tensor(series.variance)
    y = torch.as_tensor(series.F[chosen]).T / variance.sqrt().unsqueeze(-1)
    L, n = y.shape
    index = torch.arange(n).expand(L, n)
    columns = Columns(x, index, torch.ones(L, n, dtype=torch.bool), y.contiguous(), torch.zeros(L, dtype=torch.int64))
    kernels = KernelBatch(like.name or "rbf", x.shape[1], L, log_parameters=True)
    model = ExactBatch(kernels, Gaussian(L, per_output=True), columns)
    noise = min(1.0, found.noise / max(float(variance.max()), 1e-300))
    if maximise_evidence(model, np.ones(x.shape[1]), noise=noise).is_interrupted:
        # Nothing has been learnt yet that could be kept.
        raise KeyboardInterrupt
    lengthscale, outputscale = kernels.scales(kernels.rows())
    return lengthscale.detach(), outputscale.detach() * variance


def _subset(x: FloatArray, rng: np.random.Generator) -> np.ndarray:
    """Some inputs: neighbours of a random one, so that short lengthscales show, and as many from anywhere."""
    if len(x) <= _MAX_INPUTS:
        return np.arange(len(x))
    near = np.argsort(((x - x[rng.integers(len(x))]) ** 2).sum(1))[: _MAX_INPUTS // 2]
    far = rng.choice(len(x), _MAX_INPUTS // 2, replace=False)
    return np.unique(np.concatenate([near, far]))
