"""What a few observations say about outputs that a model was not trained on, with all else held fixed."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manygp.likelihoods import Likelihood
from manygp.linalg import safe_cholesky, symmetrize
from manygp.models.tlvmogp import TransformedLatentModel, moments_and_slopes
from manygp.terms import OwnPart, Points, Terms
from manygp.variational import Conditional

__all__ = ["Adaptation", "NewCells", "adapt_outputs", "adapt_own_parts", "refine_latents"]

# Damped steps on θ, before and after those on parameters of the likelihood; a step this small, in standard deviations
# of the posterior, is the last.
_STEPS, _MORE_STEPS, _SMALL_STEP = 25, 8, 1e-2
# The damping to begin with, and the most before an output stays where it is.
_DAMPING, _MAX_DAMPING = 1e-3, 1e6
# Steps of Adam on what the likelihood has for each output, and their size.
_LIKELIHOOD_STEPS, _LIKELIHOOD_RATE = 60, 0.05
# Deviations of the log variances of their own functions that are tried, in units of their prior.
_DEVIATIONS = (0.0, 1.5, 3.0)
# How much outputs differ in such a parameter: at least, and where there is one output alone.
_LEAST_SPREAD, _UNKNOWN_SPREAD = 1e-2, 1.0


@dataclass(frozen=True)
class Adaptation:
    """Posterior N(mean, covariance) of the numbers θ of every new output, and their likelihood."""

    mean: Float[Tensor, "k t"]
    covariance: Float[Tensor, "k t t"]
    likelihood: Likelihood


@dataclass(frozen=True)
class NewCells:
    """Observed cells of new outputs, in the units of the model."""

    x: Float[Tensor, "b d"]
    y: Float[Tensor, " b"]
    outputs: Int[Tensor, " b"]
    exposure: Float[Tensor, " b"] | None = None


@torch.no_grad()
def adapt_outputs(
    model: TransformedLatentModel,
    cells: NewCells,
    prior_mean: Float[Tensor, "k t"],
    prior_covariance: Float[Tensor, "k t t"],
    extras: str,
) -> Adaptation:
    """Find θ = (h, level) or (h, centre, log scale) of new outputs by damped Gauss-Newton steps, all at once.

    Every step linearises μ(x, h) around the present h and takes the expected log likelihood of a cell by its first two
    derivatives, as natural steps do. With neighbours, what inducing points leave open is noise to θ, since other cells
    of the output will tell it. Parameters of the likelihood that belong to an output are then moved by gradients
    towards a balance of its cells and of what is usual among outputs, and θ once more. Given θ, cells of different
    outputs have nothing to do with each other, so that all outputs move in one pass.
    """
    likelihood = model.likelihood.for_outputs(len(prior_mean))
    likelihood.sparse_rows = False
    numbers = torch.arange(len(prior_mean), device=prior_mean.device)
    prior_precision = torch.linalg.inv(prior_covariance)
    terms = model.terms.for_outputs(len(prior_mean))
    search = _Search(
        model, model.gp.conditional(), terms, cells, numbers, prior_mean, prior_precision, extras, likelihood
    )
    θ, precision = search.climb(search.start(), _STEPS)
    if any(row.requires_grad for row in model.likelihood.row_parameters()):
        search.fit_likelihood(θ, precision)
        θ, precision = search.climb(θ, _MORE_STEPS)
    return Adaptation(θ, torch.cholesky_inverse(safe_cholesky(symmetrize(precision))), likelihood)


@torch.no_grad()
def refine_latents(
    model: TransformedLatentModel,
    cells: NewCells,
    outputs: Int[Tensor, " k"],
    prior_mean: Float[Tensor, "k h"],
    prior_covariance: Float[Tensor, "k h h"],
) -> tuple[Float[Tensor, "k h"], Float[Tensor, "k h h"]]:
    """Means and covariances of the latent vectors of some outputs of the model after further cells of theirs.

    Cells count outputs among these. All else stays as it is, and the latent vectors begin where the prior has them.
    """
    precision = torch.linalg.inv(prior_covariance)
    parts = (model, model.gp.conditional(), model.terms, cells, outputs, prior_mean, precision, "", model.likelihood)
    h, precision = _Search(*parts).climb(prior_mean, _STEPS)
    return h, torch.cholesky_inverse(safe_cholesky(symmetrize(precision)))


@torch.no_grad()
def adapt_own_parts(model: TransformedLatentModel, cells: NewCells) -> None:
    """Give what new outputs do by themselves the variance that makes half of their cells tell best about the other.

    That is exp(a + bᵀh + τ ε) of an output, ε ~ N(0, 1). Their cells are not among those observed yet.
    """
    own, known = model.terms.of(OwnPart), model.observed
    assert known is not None
    outputs, column = cells.outputs.unique(return_inverse=True)
    # Every other cell of an output, in whatever order cells came.
    order = np.lexsort((*cells.x.T.cpu().numpy(), column.cpu().numpy()))
    is_odd = torch.as_tensor(np.argsort(order) % 2 == 1, device=column.device)
    for values in (term.log_variance for term in own):
        ε = torch.tensor(_DEVIATIONS, dtype=cells.y.dtype, device=column.device)
        score = (-0.5 * ε.square()).unsqueeze(-1).repeat(1, len(outputs))
        for asked in (is_odd, ~is_odd):
            if bool(asked.all()) or not bool(asked.any()):
                continue
            model.observed = known.joined(cells.x[~asked], cells.outputs[~asked], cells.y[~asked])
            noise = model.output_noise(cells.outputs[asked])
            noise = noise if cells.exposure is None else noise + cells.exposure[asked]
            for i, one in enumerate(_DEVIATIONS):
                values.deviation[outputs] = one
                mean, variance = model.predictor(1, 0)(cells.x[asked], cells.outputs[asked])
                total = variance[0] + noise
                fit = -0.5 * (total.log() + (cells.y[asked] - mean[0]).square() / total)
                score[i].index_add_(0, column[asked], fit)
        values.deviation[outputs] = ε[score.argmax(0)].unsqueeze(-1)
    model.observed = known


@dataclass(frozen=True)
class _Search:
    """Maximisation of log p(cells | θ) + log N(θ | prior), one problem for each output."""

    model: TransformedLatentModel
    conditional: Conditional
    terms: Terms
    cells: NewCells
    # Which of the likelihood's outputs these are.
    numbers: Int[Tensor, " k"]
    prior_mean: Float[Tensor, "k t"]
    prior_precision: Float[Tensor, "k t t"]
    extras: str
    likelihood: Likelihood

    def start(self) -> Float[Tensor, "k t"]:
        θ = self.prior_mean.clone()
        if self.extras == "level" and len(self.cells.y):
            k = len(θ)
            level = self.likelihood.level(self.cells.y, self.cells.outputs, k, self.cells.exposure)
            seen = torch.bincount(self.cells.outputs, minlength=k) > 0
            θ[:, -1] = torch.where(seen, level, θ[:, -1])
        return θ

    def climb(self, θ: Float[Tensor, "k t"], steps: int) -> tuple[Float[Tensor, "k t"], Float[Tensor, "k t t"]]:
        """Damped steps to where objectives are highest, and the precisions there.

        An output that would get worse stays where it is and tries a shorter step next; one whose step was short has
        arrived, and only the others go on.
        """
        θ = θ.clone()
        value, gradient, precision = self.evaluate(θ)
        damping = θ.new_full((len(θ),), _DAMPING)
        moving, some = torch.arange(len(θ), device=θ.device), self
        for _ in range(steps):
            diagonal = precision[moving].diagonal(dim1=-2, dim2=-1)
            A = precision[moving] + (damping[moving].unsqueeze(-1) * diagonal).diag_embed()
            move = torch.linalg.solve(A, gradient[moving].unsqueeze(-1)).squeeze(-1)
            tried = some.evaluate(θ[moving] + move)
            better = tried[0] > value[moving]
            kept = moving[better]
            θ[kept] += move[better]
            value[kept], gradient[kept], precision[kept] = (part[better] for part in tried)
            damping[moving] = torch.where(better, 0.2 * damping[moving], 8.0 * damping[moving] + 0.1)
            size = (move.square() * diagonal).sum(-1).sqrt()
            left = (size >= _SMALL_STEP) & (damping[moving] <= _MAX_DAMPING)
            moving, some = moving[left], some.among(left)
            if not len(moving):
                break
        return θ, precision

    def among(self, chosen: Bool[Tensor, " k"]) -> "_Search":
        """The search of some of the outputs."""
        cells, is_theirs = self.cells, chosen[self.cells.outputs]
        # Numbers of the chosen among themselves.
        place = chosen.cumsum(0) - 1
        exposure = None if cells.exposure is None else cells.exposure[is_theirs]
        theirs = NewCells(cells.x[is_theirs], cells.y[is_theirs], place[cells.outputs[is_theirs]], exposure)
        return replace(
            self,
            cells=theirs,
            numbers=self.numbers[chosen],
            prior_mean=self.prior_mean[chosen],
            prior_precision=self.prior_precision[chosen],
        )

    def evaluate(self, θ: Float[Tensor, "k t"]) -> tuple[Tensor, Tensor, Tensor]:
        """Objective (k,), gradient (k, t) and Gauss-Newton precision (k, t, t) of every output."""
        outputs = self.cells.outputs
        P = self.prior_precision
        away = torch.einsum("kij,kj->ki", P, θ - self.prior_mean)
        value = -0.5 * ((θ - self.prior_mean) * away).sum(-1)
        f, variance, y, J, beside = self._cells_at(θ)
        value = value.index_add(0, outputs, self._expected(f, variance, y, beside))
        by_mean, by_variance = self.likelihood.site_derivatives(f, variance, y, self.numbers[outputs], beside)
        gradient = (-away).index_add(0, outputs, by_mean.unsqueeze(-1) * J)
        if self.extras == "scale":
            # y = c + b (f + noise): every cell's density is divided by b
            count = torch.bincount(outputs, minlength=len(θ)).to(value)
            value, gradient[:, -1] = value - count * θ[:, -1], gradient[:, -1] - count
        β = (-2.0 * by_variance).clamp(min=0.0)
        precision = P.index_add(0, outputs, β[:, None, None] * J.unsqueeze(-1) * J.unsqueeze(-2))
        return torch.where(value.isfinite(), value, -torch.inf), gradient, precision

    def _expected(self, f: Tensor, variance: Tensor, y: Tensor, beside: Tensor | None) -> Tensor:
        return self.likelihood.expected_log_prob(f, variance, y, self.numbers[self.cells.outputs], beside)

    def _cells_at(self, θ: Float[Tensor, "k t"]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """What the likelihood sees: mean, variance, values in its units, slopes of the mean (b, t), noise beside."""
        outputs, y, h = self.cells.outputs, self.cells.y, self.model.latents.dim
        own = θ.index_select(0, outputs)
        f, variance, J = moments_and_slopes(self.model, self.conditional, self.cells.x, own[:, :h])
        points = Points(self.cells.x, self.numbers[outputs], torch.zeros_like(outputs), own[:, :h])
        f, J = f + self.terms.mean(points), J + self.terms.slope(points)
        if self.extras == "level":
            f, J = f + own[:, h], torch.cat([J, torch.ones_like(J[:, :1])], -1)
        if self.extras == "scale":
            # (y − c) / b moves by −1/b with c and by −(y − c)/b with log b, as if f moved the other way
            b = own[:, h + 1].exp()
            y = (y - own[:, h]) / b
            J = torch.cat([J, (1.0 / b).unsqueeze(-1), y.unsqueeze(-1)], -1)
        beside = self.cells.exposure
        if self.model.observed is not None:
            # log N(y | μ, v + σ²), not E log N(y | f, σ²)
            left = variance + self.terms.variance(points)
            variance, beside = torch.zeros_like(variance), left if beside is None else left + beside
        return f, variance, y, J, beside

    def fit_likelihood(self, θ: Float[Tensor, "k t"], precision: Float[Tensor, "k t t"]) -> None:
        """Move the parameters of the likelihood that belong to an output, f and its variance held fixed."""
        covariance = torch.linalg.inv(precision)
        f, variance, y, J, beside = self._cells_at(θ)
        # What is not known of θ is not known of f.
        variance = variance + torch.einsum("bi,bij,bj->b", J, covariance[self.cells.outputs], J)
        names = [name for name in self.likelihood.row_names() if getattr(self.likelihood, name).requires_grad]
        parameters = [getattr(self.likelihood, name) for name in names]
        usual = [parameter.detach().clone() for parameter in parameters]
        spread = [_spread(getattr(self.model.likelihood, name).detach()) for name in names]
        optimizer = torch.optim.Adam(parameters, lr=_LIKELIHOOD_RATE)
        for _ in range(_LIKELIHOOD_STEPS):
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = -self._expected(f, variance, y, beside).sum()
                for parameter, mean, sd in zip(parameters, usual, spread, strict=True):
                    loss = loss + 0.5 * ((parameter - mean) / sd).square().sum()
                loss.backward()
            optimizer.step()


def _spread(rows: Float[Tensor, " p"]) -> Float[Tensor, ""]:
    """How much outputs differ in a parameter; one alone does not tell."""
    return rows.std().clamp(min=_LEAST_SPREAD) if len(rows) > 1 else rows.new_tensor(_UNKNOWN_SPREAD)
