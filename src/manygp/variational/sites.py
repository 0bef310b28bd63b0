"""What a batch says about q(v) under any likelihood: cell by cell, through the marginals of f.

The derivatives of every cell's data term are known, so gradients are computed on the way: a chunk of cells at a time,
while its covariances are in the cache, by one product K C for the marginals and the gradient of K, and half of one,
Kᵀ diag(·) K, for the natural step and the gradient of Kuu. All of it belongs to one q(v), so a natural step returns the
data term at the q(v) that it started from.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manygp.exchange import ALONE, Exchange
from manygp.kernels import CovarianceRows, kernel_diagonal
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import (
    add_gram,
    from_lower,
    gram,
    lower_product,
    sure_cholesky,
    triangular_inverse,
    unwhitened,
    whitened,
    with_gradients,
)
from manygp.variational.evidence import (
    MIN_VARIANCE,
    Evidence,
    Natural,
    blur,
    is_precise_enough,
    projection_matrices,
    under_prior,
)
from manygp.variational.posterior import NaturalPosterior, Posterior, PosteriorMoments
from manygp.variational.trust import (
    MAX_VARIANCE,
    natural_step,
    precisions,
    says_too_much,
    tried_step,
    trusted_sites,
)

# Cells whose means are watched: those with the steepest slopes, and as many from anywhere.
_WATCHED_CELLS = 256
# Cells that tell how much all of them say.
_ASKED_CELLS = 256


@dataclass(frozen=True)
class _Sites:
    """The data term around one q(v): marginals of the cells, derivatives of each, and sums over them."""

    mean: Float[Tensor, " b"]
    variance: Float[Tensor, " b"]
    # ∂E/∂μ and ∂E/∂v of every cell
    slope: Float[Tensor, " b"]
    curvature: Float[Tensor, " b"]
    # Σ E[log p(y | f)], with gradients for the likelihood's own parameters, and its gradients in the rows of K
    value: Float[Tensor, ""]
    by_K: tuple[Tensor, ...]
    # L⁻¹ Kᵀ s, and L⁻¹ Kᵀ diag(β) K L⁻ᵀ and L⁻¹ Kᵀ γ with βᵢ = −2 ∂E/∂vᵢ, held at zero where it is negative, and
    # γᵢ = sᵢ + βᵢ μᵢ, sᵢ = ∂E/∂μᵢ
    a: Float[Tensor, " m"]
    information: Float[Tensor, "m m"]
    pull: Float[Tensor, " m"]

    @property
    def is_convex(self) -> Bool[Tensor, ""]:
        """Whether the likelihood is not log-concave at some cell."""
        return (self.curvature > 0.0).any()


@dataclass(frozen=True)
class SiteEvidence(Evidence):
    """Any likelihood, cell by cell, through the marginals N(μᵢ, vᵢ) of fᵢ.

    The likelihood sees level + f where there are levels. The tight bound lets q(f | u) have ω times the covariance of
    p(f | u), at a cost of ½ (ω − 1 − log ω) for each cell; `diagonal` holds ω kᵢᵢ then. C may be ill-conditioned, so
    all sums have the dtype of L⁻¹.
    """

    K: CovarianceRows
    diagonal: Float[Tensor, " b"]
    Linv: Float[Tensor, "m m"]
    y: Float[Tensor, " b"]
    outputs: Int[Tensor, " b"]
    likelihood: Likelihood
    exposure: Float[Tensor, " b"] | None = None
    level: Float[Tensor, " b"] | None = None
    shrinkage: Float[Tensor, ""] | None = None

    @classmethod
    def from_batch(
        cls,
        kernel: Kernel,
        e: Float[Tensor, "b e"],
        Z: Float[Tensor, "m e"],
        y: Float[Tensor, " b"],
        outputs: Int[Tensor, " b"],
        likelihood: Likelihood,
        jitter: float,
        exposure: Float[Tensor, " b"] | None = None,
        level: Float[Tensor, " b"] | None = None,
        shrinkage: Float[Tensor, ""] | None = None,
    ) -> "SiteEvidence":
        """Evidence of cells with embeddings e and values y: covariances in the dtype of e, the rest in that of Z."""
        K, diagonal = CovarianceRows(kernel, e, Z), kernel_diagonal(kernel, e).to(Z.dtype)
        Linv = triangular_inverse(sure_cholesky(K.Kuu, jitter))
        diagonal = diagonal if shrinkage is None else shrinkage * diagonal
        evidence = cls(K, diagonal, Linv, y.to(Z.dtype), outputs, likelihood, exposure, level, shrinkage)
        if e.dtype == Z.dtype or not len(y):
            return evidence
        if is_precise_enough(e.dtype, blur(K.Kuu, Linv, evidence._prior_information())):
            return evidence
        return replace(evidence, K=CovarianceRows(kernel, e.to(Z.dtype), Z))

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        sites = self._sites(q)
        return self._total(sites, q, bool(sites.is_convex))

    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        return self._held_target(self._sites(posterior.moments()), weight)

    def natural_step(
        self,
        posterior: NaturalPosterior,
        weight: float,
        rate: float,
        prior: Natural | None = None,
        exchange: Exchange = ALONE,
    ) -> tuple[Float[Tensor, ""], PosteriorMoments]:
        """Take a natural step; returns the data term at the q(v) before it, and that q(v).

        It is tried as if all were well, and there is one look at the end at whether it was.
        """
        q = posterior.moments()
        sites, old = self._sites(q), (posterior.theta, posterior.precision)
        θ, Λ = exchange.mean(*under_prior(_target(sites.information, sites.pull, weight), prior))
        moves = self._moves(sites)
        *tried, is_far = tried_step(old, q, θ, Λ, self.Linv.new_tensor(rate), moves)
        is_held = says_too_much(self.likelihood, sites.variance, sites.curvature, self.y, exchange)
        doubts = exchange.largest(torch.stack([is_far, is_held]))
        too_far, too_much, is_convex = torch.cat([doubts, sites.is_convex.view(1)]).tolist()
        if too_much:
            θ, Λ = exchange.mean(*under_prior(self._held_target(sites, weight, exchange), prior))
        if too_much or too_far:
            natural_step(posterior, q, θ, Λ, rate, moves, exchange=exchange)
        else:
            posterior.put(*tried)
        return self._total(sites, q, is_convex), q

    @torch.no_grad()
    def _sites(self, q: PosteriorMoments) -> _Sites:
        walk = _Walk(self, q)
        by_K = self.K.visit(walk.visit)
        information, a = whitened(self.Linv, from_lower(walk.information)), self.Linv @ walk.s
        with torch.enable_grad():
            value = torch.stack(walk.totals).sum()
        mean, variance, slope, curvature = walk.cells
        return _Sites(mean, variance, slope, curvature, value, by_K, a, information, self.Linv @ walk.pull + a)

    def _total(self, sites: _Sites, q: PosteriorMoments, is_convex: bool) -> Float[Tensor, ""]:
        """Σ E[log p(y | f)] with all gradients."""
        with torch.no_grad():
            # L⁻¹ Kᵀ diag(∂E/∂v) K L⁻ᵀ
            W = -0.5 * sites.information
            if is_convex:
                positive = (sites.curvature > 0.0).nonzero().squeeze(-1)
                rows = self.K.at(positive).to(W.dtype) * sites.curvature[positive].sqrt().unsqueeze(-1)
                W += whitened(self.Linv, gram(rows))
            ω = 1.0 if self.shrinkage is None else self.shrinkage.detach()
            by_Kuu = _gradient_of_Kuu(self.Linv, q, sites.a, W, ω)
        inputs = [*self.K.inputs, self.diagonal, q.mean, q.covariance]
        gradients = [*self.K.gradients(sites.by_K, by_Kuu), sites.curvature, sites.a, W]
        if self.level is not None:
            inputs, gradients = [*inputs, self.level], [*gradients, sites.slope]
        if self.shrinkage is not None:
            # ∂/∂ω Σ cᵢ vᵢ beyond that through ω kᵢᵢ: −Σ cᵢ kᵢᵀ Kuu⁻¹ kᵢ
            inputs, gradients = [*inputs, self.shrinkage], [*gradients, -W.trace()]
        total = with_gradients(sites.value, inputs, gradients)
        if self.shrinkage is not None:
            # −KL[q(f | u) ‖ p(f | u)] = ½ Σᵢ 1 + log ω − ω
            total = total + 0.5 * len(self.y) * (1.0 + self.shrinkage.log() - self.shrinkage)
        return total

    def _cells(self, rows: slice, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`Likelihood.sites` of some cells."""
        raised = mean if self.level is None else mean + self.level.detach()[rows]
        exposure = None if self.exposure is None else self.exposure[rows]
        return self.likelihood.sites(raised, variance, self.y[rows], self.outputs[rows], exposure)

    @torch.no_grad()
    def _prior_information(self) -> Float[Tensor, ""]:
        """Σᵢ βᵢ kᵢᵢ under the prior of f, from some of the cells."""
        some = slice(None, None, max(1, len(self.y) // _ASKED_CELLS))
        diagonal = self.diagonal[some]
        curvature = self._cells(some, torch.zeros_like(diagonal), diagonal.clamp(max=MAX_VARIANCE))[2]
        return len(self.y) * (precisions(curvature) * diagonal).mean()

    @torch.no_grad()
    def _held_target(self, sites: _Sites, weight: float, exchange: Exchange = ALONE) -> tuple[Tensor, Tensor]:
        """The target of a natural step, with cells that would say too much held back."""
        return _target(*self._trusted(sites, exchange), weight)

    def _trusted(self, sites: _Sites, exchange: Exchange) -> tuple[Float[Tensor, "m m"], Float[Tensor, " m"]]:
        """L⁻¹ Kᵀ diag(β) K L⁻ᵀ and L⁻¹ Kᵀ γ of cells held back."""
        mean = sites.mean if self.level is None else sites.mean + self.level.detach()
        known = sites.slope, sites.curvature
        slope, β, is_held = trusted_sites(
            self.likelihood, mean, sites.variance, self.y, self.outputs, self.exposure, known, exchange
        )
        if not is_held:
            return sites.information, sites.pull
        information, pull = torch.zeros_like(sites.information), torch.zeros_like(sites.pull)
        for rows, K in self.K:
            K = K.to(information.dtype)
            add_gram(information, K * β[rows].sqrt().unsqueeze(-1))
            pull.addmv_(K.T, slope[rows] + β[rows] * sites.mean[rows])
        return whitened(self.Linv, from_lower(information)), self.Linv @ pull

    @torch.no_grad()
    def _moves(self, sites: _Sites) -> Callable[[Tensor], Tensor] | None:
        """How far some cells move with the means of v; None where the target of a step is the optimum itself."""
        if isinstance(self.likelihood, Gaussian):
            return None
        steep = sites.slope.abs().topk(min(_WATCHED_CELLS, len(self.y))).indices
        spread = torch.arange(0, len(self.y), max(1, len(self.y) // _WATCHED_CELLS), device=steep.device)
        # A = K L⁻ᵀ takes means of v to means of f
        A = self.K.at(torch.cat([steep, spread])).to(self.Linv.dtype) @ self.Linv.T
        return lambda change: A @ change


def _target(
    information: Float[Tensor, "m m"], pull: Float[Tensor, " m"], weight: float
) -> tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]:
    """Λ̂ = I + w L⁻¹ KᵀdiagβK L⁻ᵀ and θ̂ = w L⁻¹ Kᵀγ."""
    Λ = weight * information
    return weight * pull, Λ.diagonal_scatter(Λ.diagonal() + 1.0)


class _Walk:
    """A walk over the cells of a batch at one q(v), which leaves marginals, derivatives of each cell and sums."""

    @torch.no_grad()
    def __init__(self, evidence: SiteEvidence, q: PosteriorMoments):
        Linv, shrinkage, m = evidence.Linv, evidence.shrinkage, len(evidence.Linv)
        self.evidence, self.diagonal = evidence, evidence.diagonal.detach()
        self.ω = 1.0 if shrinkage is None else shrinkage.detach()
        self.alpha, self.C = projection_matrices(Linv, q, self.ω)
        # μ, v, s = ∂E/∂μ and c = ∂E/∂v of every cell
        self.cells = Linv.new_empty(4, len(evidence.y))
        # Kᵀ diag(β) K, its lower triangle; Kᵀ s and Kᵀ diag(β) μ
        self.information, self.totals = Linv.new_zeros(m, m), [Linv.new_zeros(())]
        self.s, self.pull = Linv.new_zeros(m), Linv.new_zeros(m)
        self._KC, self._product = evidence.K.room(Linv.dtype), evidence.K.room(Linv.dtype)

    def visit(self, rows: slice, K: Tensor) -> Tensor:
        """Take in a chunk of cells; returns the gradient for its rows of K."""
        K = K.to(self.C.dtype)
        product, KC = self._product[: len(K)], torch.mm(K, self.C, out=self._KC[: len(K)])
        μ, v, slope, curvature = self.cells[:, rows]
        # μᵢ = kᵢᵀ α and vᵢ = ω kᵢᵢ − kᵢᵀ C kᵢ
        torch.mv(K, self.alpha, out=μ)
        v[:] = (self.diagonal[rows] - torch.mul(KC, K, out=product).sum(-1)).clamp_(min=MIN_VARIANCE)
        with torch.enable_grad():
            total, slope[:], curvature[:] = self.evidence._cells(rows, μ, v)
        self.totals.append(total)
        β = precisions(curvature)
        add_gram(self.information, torch.mul(K, β.sqrt().unsqueeze(-1), out=product))
        self.s.addmv_(K.T, slope)
        self.pull.addmv_(K.T, β * μ)
        # ∂/∂K = s αᵀ − 2 diag(c) K C
        return KC.mul_(-2.0 * curvature.unsqueeze(-1)).addr_(slope, self.alpha)


def _gradient_of_Kuu(
    Linv: Float[Tensor, "m m"],
    q: PosteriorMoments,
    a: Float[Tensor, " m"],
    W: Float[Tensor, "m m"],
    shrinkage: Float[Tensor, ""] | float,
) -> Float[Tensor, "m m"]:
    """∂/∂Kuu of Σ sᵢ μᵢ + cᵢ vᵢ = mᵀ a + tr(R W) + const, R = S − ω I, where a and W depend on Kuu through L.

    As in `GaussianEvidence`, through L in closed form.
    """
    R = q.covariance.clone()
    R.diagonal().sub_(shrinkage)
    # ∂/∂L = −L⁻ᵀ (m aᵀ + 2 R W), and L⁻ᵀ sym(tril(Lᵀ ∂/∂L)) L⁻¹ takes it from L to Kuu
    lower = torch.addr(lower_product(R, W), q.mean, a, beta=-1.0, alpha=-0.5).tril_()
    lower.diagonal().mul_(0.5)
    return unwhitened(Linv, lower + lower.T)
