"""Outputs that a model has not been trained on: seen through a prior, or adapted to a few observations."""

import copy
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.likelihoods import Likelihood
from manygp.linalg import safe_cholesky, symmetrize
from manygp.models.latent_variable import LatentVariableModel
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.terms import Level, Terms
from manygp.variational import Latents

Model = TypeVar("Model", bound=LatentVariableModel)

# How far outputs may differ in level, centre (in scales) and log scale where there are too few to tell.
_EXTRA_VARIANCE = {"level": (1.0,), "scale": (1.0, 0.25), "": ()}


@dataclass(frozen=True)
class Population:
    """How outputs differ: a Gaussian, of mean (t,) and covariance (t, t), for numbers θ that belong to each of them.

    θ is the latent vectors of all components and, where outputs have a level, the level; where they are scaled one by
    one, the centre and the log scale, relative to a common centre and scale. These `extras` are "level", "scale" or "".
    """

    mean: Float[Tensor, " t"]
    covariance: Float[Tensor, "t t"]
    extras: str

    @classmethod
    @torch.no_grad()
    def of(cls, model: LatentVariableModel, center: Float[Tensor, " p"], scale: Float[Tensor, " p"]) -> "Population":
        """The population of a model's outputs, whose values have been centred and scaled as told."""
        latents, p = model.latents, model.num_outputs
        L = latents.factor(torch.arange(latents.num_outputs, device=latents.mean.device))
        columns, extras = list[Tensor]([latents.mean.view(p, -1), *model.terms.constants()]), ""
        if model.terms.constants():
            extras = "level"
        elif bool((center != center[0]).any() or (scale != scale[0]).any()):
            base, unit = center.mean(), scale.log().mean()
            columns = [*columns, torch.stack([(center - base) / unit.exp(), scale.log() - unit], -1)]
            extras = "scale"
        θ = torch.cat(columns, -1)
        t, h = θ.shape[1], model.num_components * latents.dim
        mean = θ.mean(0)
        spread = (θ - mean).T @ (θ - mean)
        spread[:h, :h] += torch.block_diag(*(L @ L.mT).unflatten(0, (p, -1)).sum(0))
        # As many outputs as there are numbers, which differ as in the prior, stand beside those that were seen.
        prior = θ.new_tensor([latents.prior_variance] * h + list(_EXTRA_VARIANCE[extras]))
        return cls(mean, (spread + (t + 1) * prior.diag()) / (p + t + 1), extras)

    def extras_given(
        self, mean: Float[Tensor, "k h"], covariance: Float[Tensor, "k h h"]
    ) -> tuple[Float[Tensor, "k x"], Float[Tensor, "k x"]]:
        """Means and variances of what an output has beside its latent vector h, for h ~ N(mean, covariance)."""
        h = mean.shape[-1]
        C = self.covariance
        # B = C_xh C_hh⁻¹;  E x = μ_x + B (E h − μ_h),  var x = C_xx − B C_hx + B Σ Bᵀ
        B = torch.linalg.solve(C[:h, :h], C[:h, h:]).T
        left = (C[h:, h:] - B @ C[:h, h:]).diagonal()
        return self.mean[h:] + (mean - self.mean[:h]) @ B.T, left + (B @ covariance @ B.T).diagonal(dim1=-2, dim2=-1)


@torch.no_grad()
def model_of_new_outputs(
    model: Model,
    mean: Float[Tensor, "k h"],
    variance: Float[Tensor, "k h"],
    level: Float[Tensor, " k"],
    level_variance: Float[Tensor, " k"],
    linear_share: float,
) -> Model:
    """A model of outputs without observations: h ~ N(mean, diag variance), a level of N(level, level_variance).

    Columns of h are those of the first component, then of the next.
    """
    new = copy.copy(model)
    new._modules, new._buffers, new._parameters = dict(model._modules), dict(model._buffers), dict(model._parameters)
    own, spread = (part.reshape(-1, model.latents.dim) for part in (mean, variance))
    new.latents, new.likelihood = _latents(own, spread.sqrt().diag_embed()), model.likelihood.for_outputs(len(mean))
    others = (term.for_outputs(len(mean)) for term in model.terms if not isinstance(term, Level))
    new.terms, new.linear_share = Terms([*others, Level.known(level, level_variance)]), linear_share
    if isinstance(new, TransformedLatentModel):
        # No cell of theirs is known, and latent vectors that are hardly known have no neighbours.
        new.observed = None
        new.cell_noise = None if new.cell_noise is None else new.cell_noise.for_outputs(len(mean))
    return new


def _latents(
    mean: Float[Tensor, "k h"], factor: Float[Tensor, "k h h"], posterior: str = "full", relative: bool = True
) -> Latents:
    """Latents with q(h) = N(mean, L Lᵀ) and a standard prior, which plays no part any more."""
    k, h = mean.shape
    latents = Latents(k, h, posterior, relative=relative).to(mean.device)
    latents.mean.copy_(mean)
    latents.set_factor(factor)
    return latents


@torch.no_grad()
def joined_model(
    model: TransformedLatentModel,
    mean: Float[Tensor, "k h"],
    covariance: Float[Tensor, "k h h"],
    prior_mean: Float[Tensor, "k h"],
    level: Float[Tensor, " k"],
    likelihood: Likelihood,
    linear_share: float,
) -> TransformedLatentModel:
    """A copy of a model that has new outputs behind its own."""
    old, factor = model.latents, safe_cholesky(symmetrize(covariance))
    if old.posterior == "diagonal":
        factor = covariance.diagonal(dim1=-2, dim2=-1).sqrt().diag_embed()
    new = _latents(mean, factor, old.posterior, old.relative)
    joined = copy.deepcopy(model)
    joined.linear_share = linear_share
    joined.latents.mean = nn.Parameter(torch.cat([old.mean, new.mean]))
    joined.latents.scale = nn.Parameter(torch.cat([old.scale, new.scale]))
    if old.prior_mean is not None:
        joined.latents.prior_mean = torch.cat([old.prior_mean, prior_mean])
    joined.likelihood = model.likelihood.joined(likelihood)
    joined.terms = model.terms.joined(len(mean))
    if model.cell_noise is not None:
        joined.cell_noise = model.cell_noise.for_outputs(len(mean), behind=True)
    for term in joined.terms.of(Level):
        term.value[-len(mean) :] = term.prior[-len(mean) :] = level.unsqueeze(-1)
    return joined
