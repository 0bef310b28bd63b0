"""Effects of the rows of a table, as in `manygp.models.row_effects`, under likelihoods that are evaluated cell by cell.

    y_np ~ p(y | f_p(x_n) + a_p + b_pᵀ r_n),   r_n ~ N(0, I)

Around the marginals of a trained f, a cell's expected log density is nearly s g − ½ β g² in what is added to its mean,
with s = ∂E/∂μ and β = −2 ∂E/∂v: it observes g with precision β. So this is factor analysis with a weight for every
cell, by expectation maximisation, linearised a few times. What effects explain is no longer for the likelihood's own
parameters, such as dispersions, to explain: they are learned again, from cells left out of the effects.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.data import Grid, Scaling, Table
from manygp.data.table import IntArray
from manygp.likelihoods import Likelihood
from manygp.models.factor_analysis import Factors
from manygp.models.row_effects import HELD_SHARE, best_rank, distinct_rows, possible_ranks
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.terms import Level, Points, RowEffects

# Cells at most, and how many are worked on at once.
_MOST_CELLS, _CHUNK_CELLS = 20_000_000, 100_000
# Ranks are compared on so many outputs and cells at most, and the least gain in nats for each cell held out.
_RANK_OUTPUTS, _RANK_CELLS, _LEAST_GAIN = 500, 1_000_000, 1e-3
# How often cells are linearised, with steps of expectation maximisation each time, and the most that a mean may move.
_ROUNDS, _STEPS, _MOST_MOVE = 4, 3, 5.0
# The likelihood's own parameters: steps, the first of them, the largest; cells, and inputs, that are enough for them.
_REFIT_STEPS, _FIRST_STEP, _LARGEST_STEP, _REFIT_CELLS, _REFIT_INPUTS = 6, 0.2, 0.5, 500_000, 500
# The largest share that a cell may have in what is known about its own effect.
_MOST_LEVERAGE = 0.9


def find_site_effects(
    model: TransformedLatentModel, table: Table, scaling: Scaling, rng: np.random.Generator
) -> list[RowEffects]:
    """Effects of the rows of a table beside a trained model, whose levels and likelihood change along with them.

    Empty where effects would not predict cells held out, as in `find_row_effects`.
    """
    rows, ranks = distinct_rows(table, scaling, _MOST_CELLS), possible_ranks(table)
    if rows is None or not ranks:
        return []
    assert isinstance(table, Grid)
    x, row = rows
    cells = _Cells.of(model, table, scaling, row)
    rank = _choose_rank(cells.part(rng), ranks, rng)
    if rank is None:
        return []
    factors = _analyse(cells, rank, rng, refit=True)
    with torch.no_grad():
        for level in model.terms.of(Level):
            level.value.add_(factors.coefficients[:, -1:])
    inputs, unknown = torch.as_tensor(x), factors.own_variance()
    return [RowEffects.known(inputs, factors.mean, factors.covariance, factors.loadings, unknown)]


@dataclass(frozen=True)
class _Cells:
    """Marginals of f at all cells of a table, levels included, and what was observed there, NaN for nothing."""

    likelihood: Likelihood
    has_levels: bool
    mean: Float[Tensor, "t p"]
    variance: Float[Tensor, "t p"]
    y: Float[Tensor, "t p"]
    exposure: Float[Tensor, " t"] | None
    row: Int[Tensor, " t"]
    outputs: Int[Tensor, " p"]

    @classmethod
    @torch.no_grad()
    def of(cls, model: TransformedLatentModel, table: Grid, scaling: Scaling, row: IntArray) -> "_Cells":
        """At the means of the latent vectors."""
        device, p = model.units.device, table.num_outputs
        mean = torch.empty(table.num_inputs, p, dtype=torch.float64, device=device)
        variance, y, conditional = torch.empty_like(mean), torch.empty_like(mean), model.gp.conditional()
        for rows in table.row_chunks(_CHUNK_CELLS):
            x = torch.as_tensor(scaling.scale_x(table.X[rows]), device=device).repeat_interleave(p, 0)
            outputs = torch.arange(p, device=device).repeat(rows.stop - rows.start)
            h = model.latents.means(outputs)
            μ, v = conditional(model.embed(x, h))
            beside = model.terms.mean(Points(x, outputs, torch.zeros_like(outputs), h))
            mean[rows], variance[rows] = (μ + beside).view(-1, p), v.view(-1, p)
            values = scaling.scale_y(table.values(rows))
            y[rows] = torch.as_tensor(np.where(table.observed(rows), values, np.nan))
        exposure = None if table.exposure is None else torch.as_tensor(table.exposure, device=device)
        numbers = torch.as_tensor(row, device=device), torch.arange(p, device=device)
        return cls(model.likelihood, bool(model.terms.of(Level)), mean, variance, y, exposure, *numbers)

    def part(self, rng: np.random.Generator) -> "_Cells":
        """Some rows and outputs, as many as it takes to choose a rank."""
        n, p = self.y.shape
        outputs = torch.as_tensor(rng.permutation(p)[:_RANK_OUTPUTS], device=self.y.device)
        rows = torch.as_tensor(rng.permutation(n)[: _RANK_CELLS // len(outputs)], device=self.y.device)
        mean, variance, y = (values[rows][:, outputs] for values in (self.mean, self.variance, self.y))
        exposure = None if self.exposure is None else self.exposure[rows]
        _, row = torch.unique(self.row[rows], return_inverse=True)
        return replace(self, mean=mean, variance=variance, y=y, exposure=exposure, row=row, outputs=outputs)

    def chunks(self) -> list[slice]:
        """Slices over the rows."""
        size = max(1, _CHUNK_CELLS // self.y.shape[1])
        return [slice(begin, begin + size) for begin in range(0, len(self.y), size)]

    def observed(self, rows: slice, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
        """What `Likelihood.sites` asks for of the observed cells of some rows, with these moments of f."""
        seen = ~self.y[rows].isnan()
        at, column = seen.nonzero(as_tuple=True)
        exposure = None if self.exposure is None else self.exposure[rows][at]
        return mean[seen], variance[seen], self.y[rows][seen], self.outputs[column], exposure

    def moments(self, rows: slice, factors: Factors | None) -> tuple[Tensor, Tensor]:
        """Means and variances of f with some effects, all cells of some rows."""
        if factors is None:
            return self.mean[rows], self.variance[rows]
        g, open_ = factors.effects(self.row[rows])
        return self.mean[rows] + g, self.variance[rows] + open_ + factors.own_variance()

    @torch.no_grad()
    def linearised(self, factors: Factors | None) -> tuple[Float[Tensor, "t p"], Float[Tensor, "t p"]]:
        """γ = s + β g and β of every cell with some effects, zero where nothing was observed."""
        pull, weight = torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        for rows in self.chunks():
            mean, variance = self.moments(rows, factors)
            seen = ~self.y[rows].isnan()
            _, slope, curvature = self.likelihood.sites(*self.observed(rows, mean, variance))
            # A cell that asks for a long way is believed less: its slope says where to go, not how far.
            β = torch.maximum(-2.0 * curvature, slope.abs() / _MOST_MOVE)
            pull[rows][seen], weight[rows][seen] = slope + β * (mean - self.mean[rows])[seen], β
        return pull, weight

    @torch.no_grad()
    def log_probs(self, factors: Factors | None) -> Float[Tensor, " b"]:
        """log p(y) of all observed cells with some effects."""
        return torch.cat(
            [
                self.likelihood.predictive_log_prob(*self.observed(rows, *self.moments(rows, factors)))
                for rows in self.chunks()
            ]
        )


def _analyse(cells: _Cells, rank: int, rng: np.random.Generator, refit: bool) -> Factors:
    """Factor analysis of cells that are linearised again and again, the likelihood learned along with it if asked."""
    pull, weight = cells.linearised(None)
    factors = Factors.first(pull, weight, cells.row, rank, rng)
    for i in range(_ROUNDS):
        for _ in range(_STEPS):
            factors = factors.improved(pull, weight, cells.row, cells.has_levels)
        if refit and i == _ROUNDS - 1:
            _refit(cells, factors, pull, weight, rng)
        pull, weight = cells.linearised(factors)
    return Factors.at(pull, weight, cells.row, factors.coefficients, factors.covariance_of)


def _choose_rank(cells: _Cells, ranks: list[int], rng: np.random.Generator) -> int | None:
    """The rank under which cells held out become most likely; None if that is not beyond chance."""
    held = torch.as_tensor(rng.random(cells.y.shape) < HELD_SHARE, device=cells.y.device)
    rest, held_out = (replace(cells, y=torch.where(mask, torch.nan, cells.y)) for mask in (held, ~held))
    before = held_out.log_probs(None)

    def gain(rank: int) -> Float[Tensor, " b"]:
        return held_out.log_probs(_analyse(rest, rank, rng, refit=False)) - before

    return best_rank(ranks, gain, _LEAST_GAIN)


def _refit(
    cells: _Cells, factors: Factors, pull: Float[Tensor, "t p"], weight: Float[Tensor, "t p"], rng: np.random.Generator
) -> None:
    """Learn the likelihood's own parameters again, each cell with the effects that the others of its row imply."""
    likelihood, (n, p) = cells.likelihood, cells.y.shape
    learned = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
    if not learned:
        return
    chunks = cells.chunks()
    share = min(1.0, max(_REFIT_CELLS / p, _REFIT_INPUTS) / n)
    chosen = [chunks[i] for i in rng.permutation(len(chunks))[: math.ceil(share * len(chunks))]]
    known = [cells.observed(rows, *_left_out(cells, factors, pull, weight, rows)) for rows in chosen]
    optimizer = torch.optim.Rprop(learned, lr=_FIRST_STEP, step_sizes=(1e-4, _LARGEST_STEP))
    # The optimiser wants dense gradients.
    was_sparse, likelihood.sparse_rows = likelihood.sparse_rows, False
    for _ in range(_REFIT_STEPS):
        optimizer.zero_grad()
        for marginals in known:
            (-likelihood.predictive_log_prob(*marginals).sum()).backward()
        prior = likelihood.negative_log_prior(cells.outputs).sum()
        if prior.requires_grad:
            (prior * len(chosen) / len(chunks)).backward()
        optimizer.step()
    optimizer.zero_grad()
    likelihood.sparse_rows = was_sparse


@torch.no_grad()
def _left_out(
    cells: _Cells, factors: Factors, pull: Float[Tensor, "t p"], weight: Float[Tensor, "t p"], rows: slice
) -> tuple[Float[Tensor, "r p"], Float[Tensor, "r p"]]:
    """Means and variances of f of some rows, each cell left out of its row's effects."""
    (g, open_), β = factors.effects(cells.row[rows]), weight[rows]
    rest = (1.0 - β * open_).clamp(min=1.0 - _MOST_LEVERAGE)
    # g − v (γ − β g) / (1 − β v) and v / (1 − β v), with v = bᵀ C b
    mean = cells.mean[rows] + g - open_ * (pull[rows] - β * g) / rest
    return mean, cells.variance[rows] + open_ / rest + factors.own_variance()
