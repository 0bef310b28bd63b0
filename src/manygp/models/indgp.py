"""Ind-GP: a Gaussian process of its own for every output, exact or sparse."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.functions import Joint
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import matvec
from manygp.models.exact import ExactBatch
from manygp.models.joint.independent import SparseIndependentJoint
from manygp.models.model import Model
from manygp.models.pooling import pooled_prior
from manygp.training import History, Journal, Minimum, Recorder, climb_each, minimise_each
from manygp.variational import (
    CellBatch,
    Conditional,
    ElboTerms,
    InducingGP,
    NaturalPosterior,
    PosteriorMoments,
    Projection,
    natural_step,
    trusted_sites,
)
from manygp.variational.layout import Padding, pad_groups

# Where the search for an output's parameters may begin, in multiples of those of all outputs together.
_LENGTHSCALE_FACTORS, _NOISES = (0.2, 1.0, 5.0), (0.03, 0.5)
# Standard deviations of log parameters around those of all outputs together: an output with few cells says little.
_SPREAD = 0.5
# Evaluations of the search once outputs are drawn to each other.
_POOLED_EVALUATIONS = 5
# The least noise that a search begins with.
_MIN_NOISE = 1e-4


class SparseIndependentModel(Model):
    """Independent sparse GPs, one for each output; with a single kernel, they share it and the inducing points.

    Generative model: f_p = b_p + g_p with g_p ~ GP(0, k_p), y_np ~ p(y | f_p(x_n)); b_p is zero where outputs can be
    centred, and learned otherwise.

    Approximation: q(g_p, u_p) = p(g_p | u_p) q(u_p), u_p = g_p(Z_p).

    Bound: Σ_np E_q[log p(y_np | f_p)] − Σ_p KL[q(u_p) ‖ p(u_p)], and the log prior of what the likelihood has of each
    output's own.

    Cost of a step on b cells of p outputs: O(b m² + p m³) time, O(b m + p m²) memory, whatever the size of the table.
    """

    def __init__(self, processes: InducingGP, likelihood: Likelihood, bias: Float[Tensor, "p 1"] | None = None):
        super().__init__()
        self.processes, self.likelihood = processes, likelihood
        self.bias = None if bias is None else nn.Parameter(bias.double().clone())

    @property
    def num_parameters(self) -> int:
        """Parameters but for kernels, means and likelihood: P M D + P M + P M², and 2 P² of attention (appendix I)."""
        mixture, m = self.processes.kernels.mixture, self.processes.num_inducing
        weights = 0 if mixture is None else mixture.num_weights
        return weights + self.processes.Z.numel() + self.processes.posterior.shape[0] * (m + m**2)

    def _view(self, batch: CellBatch, generator: torch.Generator | None = None) -> "_View":
        padding, level = pad_groups(batch.column, len(batch.outputs)), self._levels(batch.outputs)
        projection = self.processes.project(padding.pad(batch.x), batch.outputs)
        return _View(padding, projection, None if level is None else level.index_select(0, batch.column))

    def _levels(self, outputs: Int[Tensor, " p"] | None = None) -> Float[Tensor, " p"] | None:
        """Constants of some outputs, of all by default; kernels that are mixtures come with means mixed alike."""
        mixture = self.processes.kernels.mixture
        if mixture is not None:
            return mixture.means(outputs)
        if self.bias is None or outputs is None:
            return None if self.bias is None else self.bias.squeeze(-1)
        return nn.functional.embedding(outputs, self.bias, sparse=self.processes.sparse).squeeze(-1)

    def _natural_step(self, batch: CellBatch, view: "_View", rate: float) -> None:
        posterior, padding, projection = self.processes.posterior, view.padding, view.projection
        assert isinstance(posterior, NaturalPosterior)
        q, cells = posterior.moments(batch.outputs), batch.outputs[batch.column]
        mean, variance = view.marginals(q)
        slope, β, _ = trusted_sites(self.likelihood, mean, variance, batch.y.to(mean.dtype), cells)
        # An output's cells count w / w_p times against its KL divergence.
        weight = (batch.cell_weight / batch.output_weight).unsqueeze(-1)
        # Λ̂ = I + w Aᵀ diag(β) A,  θ̂ = w Aᵀ (∂E/∂μ + β A m)
        β = weight * padding.pad(β)
        theta = projection.pull(weight * padding.pad(slope) + β * matvec(projection.A, q.mean))
        moves = None if isinstance(self.likelihood, Gaussian) else view.moves
        natural_step(posterior, q, theta, projection.precision(β), rate, moves, batch.outputs)

    @torch.no_grad()
    def settle(self, batch: CellBatch) -> None:
        """Set the q(u_p) of a batch that holds all cells of its outputs to their optimum; exact for Gaussian noise."""
        self._natural_step(batch, self._view(batch), 1.0)

    @torch.no_grad()
    def log_density(self, batch: CellBatch) -> Float[Tensor, " b"]:
        """log p(y) of every cell of a batch under q."""
        mean, variance = self._view(batch).marginals(self.processes.posterior.moments(batch.outputs))
        cells = batch.outputs[batch.column]
        return self.likelihood.predictive_log_prob(mean, variance, batch.y.to(mean.dtype), cells)

    def _terms(self, batch: CellBatch, view: "_View") -> ElboTerms:
        q = self.processes.posterior.moments(batch.outputs)
        mean, variance = view.marginals(q)
        cells = batch.outputs[batch.column]
        data = self.likelihood.expected_log_prob(mean, variance, batch.y.to(mean.dtype), cells).sum()
        own = self.likelihood.negative_log_prior(batch.outputs)
        weight = batch.output_weight
        return ElboTerms(batch.cell_weight * data, (weight * q.kl()).sum(), (weight * own).sum())

    def row_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.processes.kernels.row_parameters()
        if len(self.processes.Z) > 1:
            yield self.processes.Z
        if self.bias is not None:
            yield self.bias
        yield from super().row_parameters()

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "IndependentPredictor":
        """q(f) of any cells, with all that depends on q(u) alone computed once."""
        return IndependentPredictor(self.processes.conditional(), self._levels())

    @torch.no_grad()
    def joint(self, num_samples: int, seed: int) -> Joint:
        """The same for cells together, see `manygp.functions`."""
        return SparseIndependentJoint(self.processes, self._levels(), seed)


@dataclass(frozen=True)
class _View:
    """A batch as the model sees it: its cells by output, their inputs through the inducing points, and constants."""

    padding: Padding
    projection: Projection
    level: Float[Tensor, " b"] | None

    def marginals(self, q: PosteriorMoments) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Mean and variance of f at every cell."""
        mean, variance = (self.padding.take(values) for values in self.projection.marginals(q))
        return mean if self.level is None else mean + self.level, variance

    def moves(self, change: Float[Tensor, "p m"]) -> Float[Tensor, "p c"]:
        """How far the means of f at cells go with those of v; zeros in the padding."""
        padding = self.padding
        return padding.pad(padding.take(matvec(self.projection.A, change)))


class IndependentPredictor:
    """Marginals of f at any cells."""

    def __init__(self, conditional: Conditional, bias: Float[Tensor, " p"] | None):
        self.conditional, self.bias = conditional, bias
        self.width = conditional.alpha.shape[1]

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "1 b"], Float[Tensor, "1 b"]]:
        """Means and variances of f at cells (x, outputs)."""
        distinct, column = outputs.unique(return_inverse=True)
        padding = pad_groups(column, len(distinct))
        mean, variance = (padding.take(values) for values in self.conditional(padding.pad(x), distinct))
        if self.bias is not None:
            mean = mean + self.bias[outputs]
        return mean.unsqueeze(0), variance.unsqueeze(0)


# -- exact GPs: parameters by evidence ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Climb:
    """The log evidence of every output where a search ended, and its course."""

    evidence: Float[Tensor, " p"]
    history: History

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the search."""
        return self.history.stop_reason == "interrupted"


@torch.no_grad()
def maximise_evidence(
    model: ExactBatch,
    lengthscale: Float[np.ndarray, " d"],
    signal: float = 1.0,
    noise: float = 0.0,
    max_evaluations: int = 100,
    pool: bool = False,
    journal: Journal | None = None,
) -> Climb:
    """Set kernels, and noise unless it is fixed, to the maximum of the evidence, all outputs at once.

    The search begins at the best of a few places around a lengthscale, signal and noise variance that serve all
    outputs, and the logarithms of an output's own parameters have a normal prior around these, so that few cells do not
    decide much. With `pool`, the outputs then say together where that prior has its centre and how wide it is, see
    `pooled_prior`. A shared kernel has no such prior, and one log evidence, the sum over outputs. Ctrl-C ends the
    search with what it has found.
    """
    kernels, likelihood, recorder = model.kernels, model.likelihood, Recorder()
    spread: Tensor | float = torch.inf if model.is_shared else _SPREAD

    def start(factor: float, noise: float) -> Tensor:
        scaled = torch.as_tensor(factor * lengthscale).to(model.y)
        kernels.rescale(scaled.unsqueeze(0), torch.full((1,), signal, dtype=torch.float64).to(model.y))
        if not likelihood.is_fixed:
            likelihood.noise = torch.tensor(noise, dtype=torch.float64)
        return model.parameter_rows()

    def search(begin: Tensor, center: Tensor, spread: Tensor | float, most: int = max_evaluations) -> Minimum:
        def loss(rows: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            value, gradient = model.value_and_gradient(rows, which)
            pull = (rows - center) / spread
            return 0.5 * pull.square().sum(-1) - value, pull / spread - gradient

        def observe(rows: Tensor, value: Tensor) -> None:
            # log p(y_p) = ½ |(θ_p − c) / s|² − loss_p
            evidence = float((0.5 * ((rows - center) / spread).square().sum(-1) - value).sum())
            recorder.add(evidence, evidence)

        return minimise_each(loss, begin, most, observe=observe, journal=journal, recorder=recorder)

    def common_loss(rows: Tensor) -> Tensor:
        value = model.common_evidence(rows[:1])
        pull = (rows - center) / spread
        return 0.5 * pull.square().sum(-1) - (value.sum() if model.is_shared else value)

    # All outputs begin alike, so that one row is the centre of all.
    best = start(1.0, max(noise, _MIN_NOISE))
    center = best[:1]
    best_value = common_loss(best)
    for factor in _LENGTHSCALE_FACTORS:
        for level in _NOISES:
            rows = start(factor, level)
            value = common_loss(rows)
            better = value < best_value
            best, best_value = torch.where(better.unsqueeze(-1), rows, best), torch.where(better, value, best_value)
    minimum = search(best, center, spread)
    if pool and not model.is_shared and minimum.stop_reason != "interrupted":
        try:
            pooled = pooled_prior(model.value_and_gradient, minimum.x, center, _SPREAD)
            # Another prior moves a maximum by little.
            minimum, (center, spread) = search(minimum.x, *pooled, _POOLED_EVALUATIONS), pooled
        except KeyboardInterrupt:
            minimum = replace(minimum, stop_reason="interrupted")
    model.set_parameter_rows(minimum.x)
    evidence = 0.5 * ((minimum.x - center) / spread).square().sum(-1) - minimum.value
    return Climb(evidence, recorder.end(minimum.stop_reason))


@torch.no_grad()
def climb_evidence(model: ExactBatch, steps: int, learning_rate: float, journal: Journal | None = None) -> Climb:
    """Take Adam steps up the evidence from where the parameters are, as published, until they are over or Ctrl-C."""
    rows, history = climb_each(model.value_and_gradient, model.parameter_rows(), steps, learning_rate, journal)
    model.set_parameter_rows(rows)
    return Climb(model.log_evidence(rows, torch.arange(len(rows), device=rows.device)), history)
