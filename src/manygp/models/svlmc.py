"""SV-LMC: outputs as linear mixtures of a few sparse GPs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.functions import Joint
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import gaussian_kl
from manygp.models.joint.mixing import MixingJoint
from manygp.models.model import Model
from manygp.variational import (
    CellBatch,
    Conditional,
    ElboTerms,
    InducingGP,
    NaturalPosterior,
    Projection,
    trusted_sites,
)
from manygp.variational.layout import CellGrid, distinct_inputs, grid_of_cells

MIXING_POSTERIORS = ("diagonal", "point")


class Mixing(nn.Module):
    """Weights of every output: q(w_p) = N(m_p, diag s_p) with prior N(0, I), or points.

    Points may have the prior too, which makes them a maximum a posteriori; sparse gradients hold only the outputs of a
    batch.
    """

    def __init__(
        self,
        num_outputs: int,
        num_latents: int,
        posterior: str = "point",
        has_prior: bool = False,
        sparse: bool = False,
    ):
        super().__init__()
        self.posterior, self.has_prior, self.sparse = posterior, has_prior, sparse
        self.mean = nn.Parameter(torch.zeros(num_outputs, num_latents, dtype=torch.float64))
        width = num_latents if posterior == "diagonal" else 0
        self.log_std = nn.Parameter(torch.zeros(num_outputs, width, dtype=torch.float64))

    def moments(self, outputs: Int[Tensor, " p"]) -> tuple[Float[Tensor, "p q"], Float[Tensor, "p q"]]:
        """m_p and s_p of some outputs."""
        mean = nn.functional.embedding(outputs, self.mean, sparse=self.sparse)
        if self.posterior == "point":
            return mean, torch.zeros_like(mean)
        return mean, torch.exp(2.0 * nn.functional.embedding(outputs, self.log_std, sparse=self.sparse))

    def kl(self, mean: Float[Tensor, "p q"], variance: Float[Tensor, "p q"]) -> Float[Tensor, " p"]:
        """KL[q(w_p) ‖ N(0, I)] of outputs with these moments; −log p(w_p) for points, or zero without a prior."""
        if self.posterior == "diagonal":
            return gaussian_kl(mean, variance.sum(-1), variance.log().sum(-1))
        if not self.has_prior:
            return mean.new_zeros(len(mean))
        return 0.5 * (mean.square().sum(-1) + mean.shape[1] * math.log(2.0 * math.pi))


@dataclass(frozen=True)
class _View:
    """A batch as the model sees it: its cells, the processes at its inputs, and moments of its outputs' weights."""

    cells: CellGrid
    projection: Projection
    mean: Float[Tensor, "p q"]
    variance: Float[Tensor, "p q"]
    kl: Float[Tensor, " p"]


class LinearMixingModel(Model):
    """Linear model of coregionalisation with sparse variational latent processes.

    Generative model: g_l ~ GP(0, k_l) for l = 1, …, L, w_p ~ N(0, I), f_p = b_p + Σ_l w_pl g_l, y_np ~ p(y | f_p(x_n)).

    Approximation: q = p(g | u) Π_l q(u_l) Π_p q(w_p), u_l = g_l(Z_l), or points w_p, with or without their prior.

    Bound: Σ_np E_q[log p(y_np | f_p)] − Σ_l KL[q(u_l) ‖ p(u_l)] − Σ_p KL[q(w_p) ‖ p(w_p)]. Gaussian noise needs the
    mean and variance of f alone, which are closed forms; for other likelihoods every output has one draw of w_p.

    Cost of a step on n inputs and p outputs: O(n L m² + L m³ + n p L) time, O(n L m + L m² + n p) memory, whatever the
    size of the table.
    """

    def __init__(
        self, processes: InducingGP, likelihood: Likelihood, mixing: Mixing, bias: Float[Tensor, "p 1"] | None = None
    ):
        super().__init__()
        self.processes, self.likelihood, self.mixing = processes, likelihood, mixing
        self.bias = None if bias is None else nn.Parameter(bias.double().clone())

    @property
    def num_parameters(self) -> int:
        """Parameters but for kernels, likelihood and bias: L P + L M D + L M + L M² with points (appendix I)."""
        L, m, d = self.processes.Z.shape
        return self.mixing.mean.numel() + self.mixing.log_std.numel() + L * m * d + L * m + L * m**2

    def _view(self, batch: CellBatch, generator: torch.Generator) -> _View:
        x, row = distinct_inputs(batch.x)
        cells = CellGrid(row, batch.column, len(x), len(batch.outputs))
        mean, variance = self.mixing.moments(batch.outputs)
        kl = self.mixing.kl(mean, variance)
        if self.mixing.posterior != "point" and not isinstance(self.likelihood, Gaussian):
            noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
            mean, variance = mean + variance.sqrt() * noise, torch.zeros_like(variance)
        return _View(cells, self.processes.project(x), mean, variance, kl)

    def _marginals(
        self, batch: CellBatch, view: _View, level: Float[Tensor, "q n"], spread: Float[Tensor, "q n"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Mean and variance of f at every cell, from those of the processes."""
        mean, variance = mixed_moments(view.cells, level, spread, view.mean, view.variance)
        if self.bias is None:
            return mean, variance
        bias = nn.functional.embedding(batch.outputs, self.bias, sparse=self.mixing.sparse).squeeze(-1)
        return mean + bias.index_select(0, batch.column), variance

    def _natural_step(self, batch: CellBatch, view: _View, rate: float) -> None:
        """A natural step on all q(u_l) at once, see `Projection.joint_step`."""
        posterior, w, cells = self.processes.posterior, batch.cell_weight, view.cells
        assert isinstance(posterior, NaturalPosterior)
        W, s, q = view.mean, view.variance, posterior.moments()
        level, uncertainty = view.projection.marginals(q)
        mean, variance = self._marginals(batch, view, level, uncertainty)
        y, outputs = batch.y.to(mean.dtype), batch.outputs[batch.column]
        by_mean, β, _ = trusted_sites(self.likelihood, mean, variance, y, outputs)
        spread = cells.collect(β, s)

        def couple(change: Tensor) -> Tensor:
            return w * (cells.collect(β * cells.mix(change.T, W), W) + spread * change.T).T

        # Precision of process l alone w Σ_p β (W²_pl + s_pl), and its gradient w Σ_p (W_pl ∂E/∂μ − β s_pl μ_l)
        alone = w * (cells.collect(β, W.square()) + spread).T
        gradient = w * (cells.collect(by_mean, W) - spread * level.T).T
        mix = None if isinstance(self.likelihood, Gaussian) else lambda change: cells.mix(change.T, W)
        view.projection.joint_step(posterior, q, alone, gradient, couple, rate, mix)

    def _terms(self, batch: CellBatch, view: _View) -> ElboTerms:
        q = self.processes.posterior.moments()
        mean, variance = self._marginals(batch, view, *view.projection.marginals(q))
        outputs = batch.outputs[batch.column]
        data = self.likelihood.expected_log_prob(mean, variance, batch.y.to(mean.dtype), outputs).sum()
        own = view.kl + self.likelihood.negative_log_prior(batch.outputs)
        return ElboTerms(batch.cell_weight * data, q.kl().sum(), (batch.output_weight * own).sum())

    def row_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.mixing.parameters()
        if self.bias is not None:
            yield self.bias
        yield from super().row_parameters()

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "MixingPredictor":
        """q(f) of any cells, with all that depends on q(u) alone computed once."""
        return MixingPredictor(self, self.processes.conditional())

    @torch.no_grad()
    def joint(self, num_samples: int, seed: int) -> Joint:
        """The same for cells together, see `manygp.functions`."""
        return MixingJoint(self, seed)


def mixed_moments(
    cells: CellGrid,
    level: Float[Tensor, "q n"],
    spread: Float[Tensor, "q n"],
    W: Float[Tensor, "p q"],
    s: Float[Tensor, "p q"],
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Mean and variance of Σ_l w_l g_l at every cell, from those of the independent g_l and w_l.

    E = Σ_l W_l μ_l and var = Σ_l (W_l² + s_l) v_l + s_l μ_l².
    """
    μ, v = level.T, spread.T
    # One product for both parts of the variance.
    variance = cells.mix(torch.cat([v, μ.square()], -1), torch.cat([W.square() + s, s], -1))
    return cells.mix(μ, W), variance


class MixingPredictor:
    """Mean and variance of f at any cells."""

    def __init__(self, model: LinearMixingModel, conditional: Conditional):
        self.model, self.conditional = model, conditional
        self.width = conditional.alpha.numel()

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "1 b"], Float[Tensor, "1 b"]]:
        """Means and variances of f at cells (x, outputs)."""
        inputs, distinct, cells = grid_of_cells(x, outputs)
        mean, variance = mixed_moments(cells, *self.conditional(inputs), *self.model.mixing.moments(distinct))
        if self.model.bias is not None:
            mean = mean + self.model.bias[outputs, 0]
        return mean.unsqueeze(0), variance.unsqueeze(0)
