"""OILMM: outputs as mixtures of latent GPs by an orthogonal basis, which decouples the latent GPs from each other."""

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.functions import Joint
from manygp.likelihoods import Gaussian
from manygp.linalg import matvec, safe_cholesky, triangular_inverse
from manygp.models.coupled import COUPLED, CoupledRows
from manygp.models.exact import log_evidence
from manygp.models.joint.mixing import OrthogonalJoint
from manygp.models.orthogonal import Basis, Rows, Sites, project
from manygp.training import History, Journal, climb
from manygp.variational import (
    CellBatch,
    Conditional,
    ElboTerms,
    InducingGP,
    KernelBatch,
    KnownInputs,
    NaturalPosterior,
    Projection,
)
from manygp.variational.layout import CellGrid, grid_of_cells

# Least variance of a prediction, against rounding errors.
_MIN_VARIANCE = 1e-8


class ExactProcesses(nn.Module):
    """z_l ~ GP(0, k_l) observed at the same inputs with noise of different variance: exact GPs in one batch."""

    units: Tensor

    def __init__(self, kernels: KernelBatch, dim: int):
        super().__init__()
        self.kernels = kernels
        self.register_buffer("units", torch.ones(dim, dtype=torch.float64))

    def covariance(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "q n"]) -> Float[Tensor, "q n n"]:
        """k_l(x, x) + diag noise_l, of inputs in units."""
        return self.kernels.covariance(self.kernels.rows(), x, x) + torch.diag_embed(noise)

    def log_evidence(
        self, x: Float[Tensor, "n d"], mean: Float[Tensor, "q n"], noise: Float[Tensor, "q n"]
    ) -> Float[Tensor, ""]:
        """Σ_l log N(mean_l | 0, k_l(x, x) + diag noise_l)."""
        ones = torch.ones(len(mean), dtype=torch.int64, device=mean.device)
        value = log_evidence(self.covariance(x / self.units, noise), mean.unsqueeze(-1), ones)
        return value.sum() - 0.5 * math.log(2.0 * math.pi) * mean.numel()

    @torch.no_grad()
    def conditional(
        self, x: Float[Tensor, "n d"], mean: Float[Tensor, "q n"], noise: Float[Tensor, "q n"]
    ) -> Conditional:
        """p(z_l | the observations) as functions of inputs: μ = kᵀα, v = k(x, x) − |L⁻¹k|² with K + R = L Lᵀ."""
        x = x / self.units
        Linv = triangular_inverse(safe_cholesky(self.covariance(x, noise)))
        alpha = matvec(Linv.mT, matvec(Linv, mean))
        return Conditional(self.kernels, x, alpha, Linv, Linv[:, :0], self.units)


class OrthogonalMixingModel(nn.Module):
    """Orthogonal instantaneous linear mixing model.

    Generative model: z_l ~ GP(0, k_l) for l = 1, …, L, f(x) = H (z(x) + ξ(x)) with H = U S^½, UᵀU = I, white noise
    ξ_l ~ N(0, D_l) that all outputs share at an input, and y_np = f_p(x_n) + ε, ε ~ N(0, σ²).

    Approximation: of each row of observations, independent observations of the L processes, see `project`; exact where
    U_oᵀU_o is diagonal for the observed outputs o, in particular for complete rows. Sparse processes add
    q(z, u) = p(z | u) q(u), and may take rows with gaps as they are ("coupled", see `CoupledRows`). Sites of inputs, or
    rows and their patterns of gaps, are remembered for predictions.

    Bound: Σ_l log N(ẑ_l | 0, k_l(X, X) + diag(r_l + D_l)) + β Σ_n log c_n (`log_likelihood`, exact processes), or with
    the evidence of sparse GPs in the place of the first sum (`elbo`). Coupled rows:
    Σ_n E_q[log p(y_n | z)] − Σ_l KL[q(u_l) ‖ p(u_l)].

    Cost of a step on n rows of p outputs with u patterns of gaps: O(u p L² + n p L + u L³ + n L²) for the projection,
    and O(n L m² + L m³) for sparse or O(L n³) for exact processes.
    """

    x: Tensor
    site_mean: Tensor
    site_noise: Tensor
    row_pull: Tensor
    row_pattern: Tensor
    pattern_gram: Tensor

    def __init__(
        self,
        basis: Basis,
        processes: InducingGP | ExactProcesses,
        likelihood: Gaussian,
        projection: str = "matched",
        regularisation: float = 1.0,
        num_inputs: int = 0,
        num_patterns: int = 0,
    ):
        super().__init__()
        self.basis, self.processes, self.likelihood = basis, processes, likelihood
        self.projection, self.regularisation = projection, regularisation
        q, d = len(basis.raw_scale), len(processes.units)
        sites, rows = (0, num_inputs) if self.is_coupled else (num_inputs, 0)
        self.register_buffer("x", torch.zeros(num_inputs, d, dtype=torch.float64))
        self.register_buffer("site_mean", torch.zeros(sites, q, dtype=torch.float64))
        self.register_buffer("site_noise", torch.ones(sites, q, dtype=torch.float64))
        self.register_buffer("row_pull", torch.zeros(rows, q, dtype=torch.float64))
        self.register_buffer("row_pattern", torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("pattern_gram", torch.zeros(num_patterns, q, q, dtype=torch.float64))

    @property
    def is_coupled(self) -> bool:
        """Whether rows with gaps are taken as they are."""
        return self.projection == COUPLED

    @property
    def num_parameters(self) -> int:
        """Parameters but for kernels, U and σ²: 2 L + L M D + L M + L M² with sparse processes (appendix I)."""
        q = len(self.basis.raw_scale)
        if isinstance(self.processes, ExactProcesses):
            return 2 * q
        _, m, d = self.processes.Z.shape
        return 2 * q + q * m * d + q * m + q * m**2

    # -- bounds --------------------------------------------------------------------------------------------------

    def rows(self, batch: CellBatch) -> Rows:
        """What a batch, which must hold all outputs of its inputs, says through the basis as it is."""
        return Rows.gather(self.basis.U, batch)

    def coupled(self, rows: Rows) -> CoupledRows:
        """Rows as they are, as functions of all processes."""
        return CoupledRows.from_rows(rows, self.basis.S, self.basis.D, self.likelihood.noise[0])

    def sites(self, rows: Rows) -> Sites:
        """Observations of the latent processes that stand for rows."""
        S, σ2 = self.basis.S, self.likelihood.noise[0]
        return project(rows, S, self._prior_variance() + self.basis.D, σ2, self.projection)

    def _prior_variance(self) -> Float[Tensor, " q"]:
        kernels = self.processes.kernels
        origin = self.basis.S.new_zeros(1, len(self.processes.units))
        return kernels.diagonal(kernels.rows(), origin)[:, 0].clamp(min=_MIN_VARIANCE)

    def log_likelihood(self, rows: Rows) -> Float[Tensor, ""]:
        """log p(Y) with exact processes."""
        assert isinstance(self.processes, ExactProcesses)
        sites = self.sites(rows)
        evidence = self.processes.log_evidence(rows.x, sites.mean.T, (sites.noise + self.basis.D).T)
        return evidence + self.regularisation * sites.log_scale.sum()

    def elbo(self, batch: CellBatch, generator: torch.Generator) -> ElboTerms:
        """An unbiased estimate of the bound from a batch of rows."""
        return self.bound(self.rows(batch), batch.cell_weight)

    def natural_elbo(self, batch: CellBatch, generator: torch.Generator, rate: float) -> ElboTerms:
        """Take a natural step on every q(u_l), then estimate the bound at the new ones."""
        return self.bound(self.rows(batch), batch.cell_weight, rate)

    def bound(self, rows: Rows, weight: float = 1.0, rate: float | None = None) -> ElboTerms:
        """The bound with sparse processes from rows of some weight, after a natural step if a rate is given."""
        assert isinstance(self.processes, InducingGP)
        if self.is_coupled:
            return self._coupled_bound(self.coupled(rows), self.processes.project(rows.x), weight, rate)
        sites = self.sites(rows)
        evidence = self.processes.evidence_of_values(rows.x, sites.mean.T, (sites.noise + self.basis.D).T)
        posterior = self.processes.posterior
        if rate is None:
            q = posterior.moments()
            data = evidence.expected_log_lik(q)
        else:
            assert isinstance(posterior, NaturalPosterior)
            data, q = evidence.natural_step(posterior, weight, rate)
        data = data + self.regularisation * sites.log_scale.sum()
        return ElboTerms(weight * data, q.kl().sum(), torch.zeros_like(data))

    def _coupled_bound(self, rows: CoupledRows, projection: Projection, weight: float, rate: float | None) -> ElboTerms:
        assert isinstance(self.processes, InducingGP)
        posterior = self.processes.posterior
        if rate is not None:
            assert isinstance(posterior, NaturalPosterior)
            rows.natural_step(posterior, projection, weight, rate)
        q = posterior.moments()
        data = rows.expected_log_lik(*projection.marginals(q))
        return ElboTerms(weight * data, q.kl().sum(), torch.zeros_like(data))

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """None: a step touches all outputs."""
        return iter(())

    # -- prediction ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def remember(self, parts: Iterable[Rows]) -> None:
        """Keep the sites of all rows of a table, or the rows themselves, which predictions need."""
        if self.is_coupled:
            rows = Rows.join(parts)
            self.x, self.row_pull = rows.x.to(self.x.dtype), rows.pull
            self.row_pattern, self.pattern_gram = rows.pattern, rows.gram
            return
        known = [(rows.x.to(self.x.dtype), self.sites(rows)) for rows in parts]
        self.x = torch.cat([x for x, _ in known])
        self.site_mean = torch.cat([sites.mean for _, sites in known])
        self.site_noise = torch.cat([sites.noise for _, sites in known])

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "OrthogonalPredictor":
        """Marginals of f at any cells, with all that depends on the data alone computed once."""
        if isinstance(self.processes, ExactProcesses):
            noise = self.site_noise + self.basis.D
            return OrthogonalPredictor(self, self.processes.conditional(self.x, self.site_mean.T, noise.T))
        if self.is_coupled:
            return CoupledPredictor(self, self.processes.conditional())
        return OrthogonalPredictor(self, self.processes.conditional())

    @torch.no_grad()
    def joint(self, num_samples: int, seed: int) -> Joint:
        """The same for cells together, see `manygp.functions`."""
        predictor = self.predictor(num_samples, seed)
        rows = predictor.rows if isinstance(predictor, CoupledPredictor) else None
        return OrthogonalJoint(self, rows, predictor.unseen_variance.detach(), seed)


class OrthogonalPredictor:
    """Marginals of f = H (z + ξ) at any cells."""

    def __init__(self, model: OrthogonalMixingModel, conditional: Conditional):
        self.model, self.conditional = model, conditional
        self.H, self.D = model.basis.H.detach(), model.basis.D.detach()
        self.known = KnownInputs(model.x)
        seen = model.basis.seen
        prior = (self.H.square() * (model._prior_variance() + self.D)).sum(-1)
        # An output without observations is like any other, but nobody knows which.
        self.unseen_variance = prior[seen].mean() if bool(seen.any()) else prior.mean()
        self.width = conditional.alpha.numel()

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "1 b"], Float[Tensor, "1 b"]]:
        """Means and variances of f at cells (x, outputs)."""
        inputs, distinct, cells = grid_of_cells(x, outputs)
        mean, variance = self._moments(inputs, cells, distinct)
        seen = self.model.basis.seen[outputs]
        mean, variance = torch.where(seen, mean, 0.0), torch.where(seen, variance, self.unseen_variance)
        return mean.unsqueeze(0), variance.clamp(min=_MIN_VARIANCE).unsqueeze(0)

    def _moments(self, x: Float[Tensor, "n d"], cells: CellGrid, outputs: Int[Tensor, " p"]) -> tuple[Tensor, Tensor]:
        """Means and variances of f at the cells of a grid of inputs and outputs."""
        level, spread = self._processes(x)
        H = self.H[outputs]
        return cells.mix(level.T, H), cells.mix(spread.T, H.square())

    def _processes(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "q n"], Float[Tensor, "q n"]]:
        """Moments of z + ξ: at inputs of the table, what was observed there tells about ξ too."""
        mean, variance = self.conditional(x)
        place = self.known.find(x)
        place, known = place.clamp(min=0), place >= 0
        located, r = self.model.site_mean[place].T, self.model.site_noise[place].T
        D = self.D.unsqueeze(-1)
        # p(ξ | z, ẑ): mean D (ẑ − z) / (D + r), variance D r / (D + r)
        share = D / (D + r)
        informed = mean + share * (located - mean), variance * (1.0 - share).square() + share * r
        return torch.where(known, informed[0], mean), torch.where(known, informed[1], variance + D)


class CoupledPredictor(OrthogonalPredictor):
    """Marginals of f = U a' with a' = S^½ (z + ξ), whose elements depend on each other at inputs of rows with gaps."""

    def __init__(self, model: OrthogonalMixingModel, conditional: Conditional):
        super().__init__(model, conditional)
        empty = model.row_pull.new_zeros(len(model.row_pull))
        rows = Rows(model.x, model.pattern_gram, model.row_pattern, model.row_pull, empty, empty)
        self.rows, self.U = model.coupled(rows), model.basis.U.detach()
        self.width += self.U.shape[1] ** 2

    def _moments(self, x: Float[Tensor, "n d"], cells: CellGrid, outputs: Int[Tensor, " p"]) -> tuple[Tensor, Tensor]:
        S, U = self.rows.S, self.U[outputs]
        of_z, spread = self.conditional(x)
        a, variance = S.sqrt() * of_z.T, S * spread.T
        mean, covariance = a, torch.diag_embed(variance + self.rows.Δ)
        place = self.known.find(x)
        place, known = place.clamp(min=0), place >= 0
        if bool(known.any()):
            mean, covariance = mean.clone(), covariance.clone()
            mean[known], covariance[known] = self.rows.posterior(place[known], a[known], variance[known])
        # var f_p = u_pᵀ R Rᵀ u_p, a column of R at a time: pairs of columns of U would take the memory of q tables
        level = cells.mix(mean, U)
        squared = torch.zeros_like(level)
        for column in safe_cholesky(covariance).unbind(-1):
            squared += cells.mix(column, U).square()
        return level, squared


def climb_likelihood(
    model: OrthogonalMixingModel,
    rows: Callable[[], Rows],
    num_cells: int,
    max_steps: int,
    journal: Journal | None = None,
) -> History:
    """Climb the log likelihood, or the bound with the best q(u), see `climb`.

    With all rows at hand the best q(u) is known in closed form, so that a natural step of rate 1 before every
    evaluation makes the bound a function of the other parameters alone.
    """

    def exact() -> ElboTerms:
        total = model.log_likelihood(rows())
        return ElboTerms(total, torch.zeros_like(total), torch.zeros_like(total))

    if isinstance(model.processes, ExactProcesses):
        return climb(model.parameters(), exact, num_cells, max_steps, journal=journal)
    # Where processes are coupled, a step of rate 1 depends on the q(u) before it.
    posterior = model.processes.posterior.buffers()
    best = lambda: model.bound(rows(), rate=1.0)  # noqa: E731
    return climb(model.parameters(), best, num_cells, max_steps, 1.0, journal, posterior)
