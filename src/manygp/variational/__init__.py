"""The variational core: inducing GP, its posterior q(u), what data say about it, and latents q(h).

Nothing here knows of tables, devices or training loops. The bound of a model is put together from `Evidence`
(the data term), `PosteriorMoments.kl` and `Latents.kl`.
"""

from manygp.variational.bound import CellBatch, ElboTerms
from manygp.variational.conditional import Conditional
from manygp.variational.coordinates import CoordinatePrior
from manygp.variational.evidence import Evidence, GaussianEvidence
from manygp.variational.groups import Groups
from manygp.variational.inducing import InducingGP
from manygp.variational.kernel_batch import KernelBatch, Mixture, covariance_of
from manygp.variational.known_inputs import KnownInputs
from manygp.variational.latents import LATENT_POSTERIORS, Latents
from manygp.variational.posterior import CholeskyPosterior, NaturalPosterior, Posterior, PosteriorMoments
from manygp.variational.projection import Projection
from manygp.variational.sites import SiteEvidence
from manygp.variational.tensor_normal import TensorNormal
from manygp.variational.trust import natural_step, trusted_rate, trusted_sites
from manygp.variational.vecchia import VecchiaEvidence, projected_rows

__all__ = [
    "LATENT_POSTERIORS",
    "CellBatch",
    "CholeskyPosterior",
    "Conditional",
    "CoordinatePrior",
    "ElboTerms",
    "Evidence",
    "GaussianEvidence",
    "Groups",
    "InducingGP",
    "KernelBatch",
    "KnownInputs",
    "Latents",
    "Mixture",
    "NaturalPosterior",
    "Posterior",
    "PosteriorMoments",
    "Projection",
    "SiteEvidence",
    "TensorNormal",
    "VecchiaEvidence",
    "covariance_of",
    "natural_step",
    "projected_rows",
    "trusted_rate",
    "trusted_sites",
]
