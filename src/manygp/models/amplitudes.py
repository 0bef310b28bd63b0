"""How strong noise and terms are, by what neighbours say about cells that they have not seen.

Training conditions nearly all cells on others close by, so that it tells little about stretches without any. Once it is
over, scattered cells and whole stretches are left out, and the variances of the noise and of each term are multiplied
by factors exp(α) under which both are likely:

    Σ_near log N(y | μ(α), v(α)) / n_near + Σ_far log N(y | μ(α), v(α)) / n_far − |α|² / 2τ²n,   α ~ N(0, τ² I)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.data.batches import known_noise
from manygp.likelihoods import Gaussian
from manygp.linalg import safe_cholesky
from manygp.models.neighbors import Local, NeighborPredictor
from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["fit_amplitudes"]

# Cells of each kind that are asked about, and the fewest that tell anything.
_MOST_CELLS, _LEAST_CELLS = 500, 30
# Prior variance of α, and iterations of L-BFGS.
_SPREAD, _STEPS = 0.2, 30
# Logarithms of factors stay within so much of 0, wherever a line search would go.
_FARTHEST = 4.0


@dataclass(frozen=True)
class _LeftOut:
    """Cells left out, and their neighbours with every part of the covariance by itself; `fixed` is known noise."""

    predictor: NeighborPredictor
    local: Local
    y: Float[Tensor, " b"]
    residual: Float[Tensor, "b k k"]
    terms: Sequence[Float[Tensor, "b k k"]]
    noise: Float[Tensor, "b n"]
    fixed: Float[Tensor, "b n"]
    own_noise: Float[Tensor, " b"]
    own_fixed: Float[Tensor, " b"]
    misfit: Float[Tensor, "b n"]

    @classmethod
    @torch.no_grad()
    def of(
        cls, predictor: NeighborPredictor, table: Table, scaling: Scaling, rng: np.random.Generator
    ) -> "_LeftOut | None":
        """Some cells of a table that neighbours do not see; None where they are few."""
        row, output, value = table.sample(_MOST_CELLS, rng)
        if len(value) < _LEAST_CELLS:
            return None
        model, device = predictor.model, predictor.cells.y.device
        x, outputs = torch.as_tensor(scaling.scale_x(table.X[row]), device=device), torch.as_tensor(output).to(device)
        local = predictor.local(x, outputs, torch.full_like(outputs, -1))
        group, own = local.group, model.output_noise(outputs)
        fixed, own_fixed = torch.zeros_like(local.seen[:, :-1], dtype=own.dtype), torch.zeros_like(own)
        if model.cell_noise is not None:
            own = own * model.cell_noise.factor(torch.as_tensor(row, device=device))
        known = known_noise(table, scaling, row, output)
        if known is not None and predictor.cells.noise is not None:
            fixed, own_fixed = predictor.cells.noise[local.cells[local.at[:, :-1]]], torch.as_tensor(known).to(own)
        return cls(
            predictor,
            local,
            torch.as_tensor(scaling.scale_y(value, output), device=device),
            local.covariance(predictor.residual(local)),
            [local.covariance(term.covariance(group, group)) for term in model.terms if term.has_amplitude],
            predictor.noise(local) - fixed,
            fixed,
            own,
            own_fixed,
            predictor.misfit(local),
        )

    def log_density(self, α: Float[Tensor, " t"]) -> Float[Tensor, ""]:
        """Mean log density of the cells with variances of noise, latent vectors and each term multiplied by exp(α)."""
        noise_factor, latent_factor, *factors = α.exp()
        S = self.residual
        for factor, term in zip(factors, self.terms, strict=True):
            S = S + factor * term
        seen, S_N = self.local.seen, S[:, :-1, -1:]
        noise = torch.where(seen[:, :-1], noise_factor * self.noise + self.fixed, 1.0)
        b = torch.cholesky_solve(S_N, safe_cholesky(S[:, :-1, :-1] + torch.diag_embed(noise)))
        weight = torch.cat([-b, torch.ones_like(b[:, :1])], 1) * seen.unsqueeze(-1)
        error = self.y - self.local.mean[self.local.at[:, -1]] - (b.squeeze(-1) * self.misfit).sum(-1)
        left = (S[:, -1, -1] - (b * S_N).sum((-2, -1))).clamp(min=1e-12)
        known = self.predictor.known_by_inducing(self.local, weight)
        known = known + latent_factor * self.predictor.known_by_latents(self.local, weight)
        variance = known + left + noise_factor * self.own_noise + self.own_fixed
        return -0.5 * (error.square() / variance + variance.log()).mean()


def fit_amplitudes(
    model: TransformedLatentModel, left_out: Sequence[Table], scaling: Scaling, rng: np.random.Generator
) -> dict[str, float]:
    """Multiply variances of noise, latent vectors and terms by what suits cells left out; return factors by name.

    Parameters
    ----------
    model
        A trained model whose q(u) and observed cells do not know the cells that were left out.
    left_out
        Tables of cells that were left out, each of which has the same say.
    scaling
        Their scaling.
    rng
        Source of randomness.
    """
    assert isinstance(model.likelihood, Gaussian)
    predictor = NeighborPredictor(model, model.num_neighbors, has_noise=True)
    asked = [_LeftOut.of(predictor, table, scaling, rng) for table in left_out]
    known = [cells for cells in asked if cells is not None]
    terms = [term for term in model.terms if term.has_amplitude]
    if not known:
        return {}
    α = torch.zeros(2 + len(terms), dtype=torch.float64, device=model.units.device, requires_grad=True)
    is_fixed = torch.zeros_like(α, requires_grad=False)
    is_fixed[0] = float(model.likelihood.is_fixed)
    # A prior weighs as much beside the mean of n cells as beside their sum.
    penalty = 0.5 / _SPREAD / (sum(len(cells.y) for cells in known) / len(known))
    optimizer = torch.optim.LBFGS([α], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        free = α.clamp(-_FARTHEST, _FARTHEST) * (1.0 - is_fixed)
        value = penalty * free.square().sum() - sum(cells.log_density(free) for cells in known)
        value.backward()
        return value

    optimizer.step(loss)
    found = α.detach().clamp(-_FARTHEST, _FARTHEST) * (1.0 - is_fixed)
    if not found.isfinite().all():
        return {}
    noise, latents, *factors = found.exp().tolist()
    with torch.no_grad():
        if not model.likelihood.is_fixed:
            model.likelihood.noise = model.likelihood.noise * noise
        model.latents.rescale(latents)
        for term, factor in zip(terms, factors, strict=True):
            term.rescale(factor)
    names = ["noise", "latent vectors", *(term.name for term in terms)]
    return dict(zip(names, [noise, latents, *factors], strict=True))
