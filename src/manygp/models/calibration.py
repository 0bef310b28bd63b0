"""The noise of a trained model by what it says about every cell from all others.

The bound takes all that a model cannot follow for noise: what inducing points leave open, and how unsure latent vectors
are. Both are then in a prediction twice, and intervals on clean tables are too wide. Where every output has been scaled
by few cells of its own, the noise is in turn too small, since those cells had a say in their own unit. Leaving a cell
out shows either.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Grid, Scaling, Table
from manygp.data.batches import known_noise
from manygp.data.table import FloatArray, IntArray
from manygp.kernels import cross_covariance, kernel_diagonal
from manygp.likelihoods import Gaussian
from manygp.models.tlvmogp import TransformedLatentModel, moments_and_slopes
from manygp.terms import Points

# Cells that are left out, one at a time, and fewer of which, or a smaller share, say nothing.
_MOST_CELLS, _LEAST_CELLS, _LEAST_KEPT = 10_000, 20, 0.9
# Gaps that are looked at, and how much more variance they may have than cells left out, if these are to speak for them.
_MOST_GAPS, _LIKE = 2000, 1.25
# Factors of the noise to choose from, those near 1 first. A training that was cut short may have left it far too small,
# and a noise that is far too large is due to variances that would be too large without it.
_FACTORS = tuple(1.1**k for k in sorted(range(-20, 49), key=abs))
# Of what is known about a cell, the least share that others have to know; and the least part of its unit.
_LEAST_REST, _LEAST_UNIT = 0.3, 0.3


@dataclass(frozen=True)
class LeftOut:
    """What all other cells say about some: residuals, variances of f, and noise variances, in scaled units.

    `share` is that of all cells that others say anything about.
    """

    residual: Float[Tensor, " b"]
    variance: Float[Tensor, " b"]
    noise: Float[Tensor, " b"]
    share: float = 1.0

    def log_density(self, factor: float) -> Float[Tensor, " b"]:
        """log N(residual | 0, variance + factor · noise), but for a constant."""
        total = self.variance + factor * self.noise
        return -0.5 * (self.residual.square() / total + total.log())


@torch.no_grad()
def leave_out(model: TransformedLatentModel, table: Table, scaling: Scaling, rng: np.random.Generator) -> LeftOut:
    """Leave observed cells out, one at a time.

    With a cell's share r = (aᵀSa + gᵀΣg) / σ² of what is known about it (a its projection on the inducing variables, g
    the slope of f in h), the others' residual is e / (1 − r) and their variance σ² r / (1 − r), beside what inducing
    points leave open.
    """
    row, output, value = table.sample(_MOST_CELLS, rng)
    mean, known, open_variance, noise = _marginals(model, scaling.scale_x(table.X[row]), output)
    y, fixed = scaling.scale_y(value, output), torch.zeros_like(noise)
    if model.cell_noise is not None:
        noise = noise * model.cell_noise.factor(torch.as_tensor(row, device=noise.device))
        told = known_noise(table, scaling, row, output)
        fixed = fixed if told is None else torch.as_tensor(told).to(noise)
    growth = _unfamiliarity(table, scaling, output, value)
    rest = 1.0 - known / (noise + fixed)
    # A cell that almost all knowledge of itself comes from says nothing about the others.
    kept = rest > _LEAST_REST
    residual = torch.as_tensor(growth).to(mean) * (torch.as_tensor(y).to(mean) - mean) / rest
    variance = known / rest + open_variance + fixed
    return LeftOut(residual[kept], variance[kept], noise[kept], float(kept.double().mean()))


def _marginals(model: TransformedLatentModel, inputs: FloatArray, output: IntArray) -> tuple[Tensor, ...]:
    """Of f at cells: mean, variance due to q(u) and q(h), variance that inducing points leave open, and the noise."""
    device, gp = model.units.device, model.gp
    x, outputs = torch.as_tensor(inputs, device=device), torch.as_tensor(output, device=device)
    h = model.latents.means(outputs)
    e = model.embed(x, h)
    mean, _, slope = moments_and_slopes(model, gp.conditional(), x, h)
    points = Points(x, outputs, torch.zeros_like(outputs), h)
    mean, slope = mean + model.terms.mean(points), slope + model.terms.slope(points)
    A = cross_covariance(gp.kernel, e, gp.Z) @ gp.whitening().T
    open_variance = (kernel_diagonal(gp.kernel, e) - A.square().sum(-1)).clamp(min=0.0)
    own = torch.einsum("bi,bij->bj", slope, model.latents.factor(outputs)).square().sum(-1)
    known = ((A @ gp.posterior.moments().covariance) * A).sum(-1) + own
    return mean, known, open_variance, model.likelihood.conditional_moments(mean, outputs)[1]


def _gap_variance(
    model: TransformedLatentModel, table: Table, scaling: Scaling, rng: np.random.Generator
) -> Float[Tensor, " b"] | None:
    """Variances of predictions of some missing cells of outputs that were observed, if there are any."""
    if not isinstance(table, Grid):
        return None
    row, output = rng.integers(table.num_inputs, size=_MOST_GAPS), rng.integers(table.num_outputs, size=_MOST_GAPS)
    rows, outputs = np.unique(row), np.unique(output)
    missing = np.isnan(table.block(rows, outputs)[np.searchsorted(rows, row), np.searchsorted(outputs, output)])
    missing &= table.count_per_output()[output] > 0
    if not missing.any():
        return None
    _, known, open_variance, noise = _marginals(model, scaling.scale_x(table.X[row[missing]]), output[missing])
    return known + open_variance + noise


def _unfamiliarity(table: Table, scaling: Scaling, output: IntArray, value: FloatArray) -> FloatArray:
    """What residuals grow by when their cells have no say in the centre and scale of their output.

    Columns that others have helped to complete are taken for columns of observed cells alone: what fills their gaps
    follows from these.
    """
    own = Scaling.fit(table, outputs="output")
    if not np.ptp(scaling.y_scale) and not np.allclose(own.y_scale, scaling.y_scale, rtol=1e-6):
        # A unit that all outputs share hardly depends on a cell.
        return np.ones(len(output))
    n, z = np.maximum(table.count_per_output()[output].astype(float), 2.0), own.scale_y(value, output)
    # s'² = (n − n z² / (n − 1)) / (n − 1) in units of the scale with the cell, which has the value z
    squares = (n - n * np.square(z) / (n - 1.0)) / (n - 1.0)
    return n / (n - 1.0) / np.sqrt(np.maximum(squares, _LEAST_UNIT**2))


@torch.no_grad()
def calibrate_noise(model: TransformedLatentModel, table: Table, scaling: Scaling, rng: np.random.Generator) -> float:
    """Multiply the noise by the factor under which left-out cells are most likely, and return it.

    Of all that are as good within a standard error, it is the one nearest 1; and it is 1 where cells are so few that
    those left out are hardly predicted by others, and for a noise that is fixed.
    """
    assert isinstance(model.likelihood, Gaussian)
    if model.likelihood.is_fixed:
        return 1.0
    left_out = leave_out(model, table, scaling, rng)
    if len(left_out.residual) < _LEAST_CELLS or left_out.share < _LEAST_KEPT:
        # Where outputs have few cells, the predictable ones are not like those that are missing.
        return 1.0
    gaps = _gap_variance(model, table, scaling, rng)
    variance = left_out.variance + left_out.noise
    if gaps is not None and float((gaps.log().mean() - variance.log().mean()).exp()) > _LIKE:
        # What is missing is farther from all that is observed than single cells are from each other.
        return 1.0
    return _rescale_noise(model, left_out)


def _rescale_noise(model: TransformedLatentModel, left_out: LeftOut) -> float:
    """Multiply the noise by the factor that suits cells left out."""
    assert isinstance(model.likelihood, Gaussian)
    factor = _best_factor(left_out)
    model.likelihood.noise = model.likelihood.noise * factor
    return factor


def _best_factor(left_out: LeftOut) -> float:
    """Of all factors under which cells left out are as likely as under the best, the one nearest 1."""
    densities = {factor: left_out.log_density(factor) for factor in _FACTORS}
    best = densities[max(densities, key=lambda factor: float(densities[factor].mean()))]

    def is_as_good(factor: float) -> bool:
        loss = best - densities[factor]
        return float(loss.mean()) <= float(loss.std()) / len(loss) ** 0.5

    return next(factor for factor in _FACTORS if is_as_good(factor))
