"""What all cells of a model with neighbours say about q(v) and about latent vectors, with all else held fixed.

Both are made anew of all cells: one pass over them is a small part of a fit, and leaves nothing behind of cells that
are gone. Latent vectors are at their means, where predictions have them. The gradient g of the bound in the mean of
q(h_p) = N(m_p, C_p), at the q(v) that the fit has left, has the natural step

    m_p ← m_p + r C_p g

which is taken if the bound at the optimal q(v), the log evidence, is higher there.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.data import Cells, GroupPlan, Scaling
from manygp.linalg import safe_cholesky, symmetrize, triangular_inverse
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.variational import CellBatch
from manygp.variational.evidence import Natural

__all__ = ["natural_of_groups", "step_latents"]

# Cells of a group, and about how many are worked on at a time.
_GROUP_SIZE, _GROUP_CELLS = 32, 2700
# Rate r of the step of latent vectors, what it is multiplied by where the evidence falls, and how often: other outputs
# move too, which the covariance of one does not know.
_RATE, _SMALLER, _TRIES = 0.1, 0.3, 3


@torch.no_grad()
def natural_of_groups(model: TransformedLatentModel, seed: int) -> Natural:
    """θ and Λ of the optimal q(v)."""
    return _optimum(model, seed)[0]


@torch.no_grad()
def step_latents(model: TransformedLatentModel, outputs: Int[Tensor, " k"], seed: int) -> Natural:
    """Move latent vectors of some outputs to where the evidence of all cells is higher; returns the optimal q(v)."""
    latents, rate = model.latents, _RATE
    before, gradient = latents.mean[outputs], torch.zeros_like(latents.mean)
    natural, value = _optimum(model, seed, gradient)
    L = latents.factor(outputs)
    step = (L @ (L.mT @ gradient[outputs].unsqueeze(-1))).squeeze(-1)
    for _ in range(_TRIES):
        latents.mean[outputs] = before + rate * step
        tried = _optimum(model, seed)
        if tried[1] > value:
            return tried[0]
        rate *= _SMALLER
    latents.mean[outputs] = before
    return natural


def _batches(model: TransformedLatentModel, seed: int) -> Iterator[CellBatch]:
    """All cells in groups that are close at the means of latent vectors."""
    cells = model.observed
    assert cells is not None
    x, output = cells.inputs.cpu().numpy()[cells.row.cpu().numpy()], cells.output.cpu().numpy().astype(np.int64)
    # Whatever order cells came in, their groups are the same.
    order = np.lexsort((output, *x.T))
    x, output, y = x[order], output[order], cells.y.cpu().numpy()[order]
    d, p = x.shape[1], model.num_outputs
    table = Cells(x, output, y, range(p))
    plain = Scaling(np.zeros(d), np.ones(d), np.zeros(p), np.ones(p))
    plan = GroupPlan(table, plain, _GROUP_CELLS, _GROUP_SIZE, model.num_neighbors, np.random.default_rng(seed))
    device = cells.y.device
    at_input, at_output = model.coordinates_of(torch.as_tensor(x, device=device), torch.arange(p, device=device))
    plan.arrange(np.concatenate([at_input.cpu().numpy(), at_output.cpu().numpy()[output]], axis=1))
    for batch in plan.epoch(np.random.default_rng(seed)):
        yield CellBatch.from_arrays(batch, torch.float64, device)


@torch.no_grad()
def _optimum(
    model: TransformedLatentModel, seed: int, gradient: Float[Tensor, "p h"] | None = None
) -> tuple[Natural, float]:
    """θ and Λ of the optimal q(v), and the log evidence there but for a constant.

    To `gradient` it adds that of the bound in the means of latent vectors, at the q(v) of the model.
    """
    m, z, q, mean = len(model.gp.Z), model.gp.Z, model.gp.posterior.moments(), model.latents.mean.detach()
    θ, Λ, rest = z.new_zeros(m), torch.eye(m, dtype=z.dtype, device=z.device), z.new_zeros(())
    for batch in _batches(model, seed):
        with torch.set_grad_enabled(gradient is not None):
            h = mean[batch.outputs].requires_grad_(gradient is not None)
            evidence = model.group_evidence(batch, h.index_select(0, batch.column))
            if gradient is not None:
                told = torch.autograd.grad(evidence.expected_log_lik(q), h)[0]
                gradient.index_add_(0, batch.outputs, told)
        target = evidence.natural_target(model.gp.posterior, 1.0)
        θ, Λ = θ + target[0], Λ + target[1]
        Λ.diagonal().sub_(1.0)
        rest = rest + evidence.own_values.square().sum() + evidence.logdet
    if gradient is not None:
        prior = torch.zeros_like(mean) if model.latents.prior_mean is None else model.latents.prior_mean
        gradient += (prior - mean) / model.latents.prior_variances()
    Linv = triangular_inverse(safe_cholesky(symmetrize(Λ)))
    # −2 log p(y) = Σ ỹ² + log|S| − θᵀ Λ⁻¹ θ + log|Λ|
    rest = rest - (Linv @ θ).square().sum() - 2.0 * Linv.diagonal().log().sum()
    outputs = torch.arange(model.num_outputs, device=z.device)
    return (θ, symmetrize(Λ)), float(-0.5 * rest - model.latents.kl(outputs).sum())
