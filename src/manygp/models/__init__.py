"""Models: one paper, one short file. A model has a bound on batches and a predictor; it never trains itself.

`start` holds what a model begins with: sizes, scaling and parameters from the data, or the paper's prior start.
"""

from manygp.models.evidence import Lengthscales, evidence_lengthscales
from manygp.models.start import (
    choose_latent_dim,
    choose_num_inducing,
    choose_scaling,
    find_lengthscales,
    find_noise_spread,
    latent_dim_of,
    start_from_data,
    start_from_prior,
)
from manygp.models.tlvmogp import Predictor, TransformedLatentModel

__all__ = [
    "Lengthscales",
    "Predictor",
    "TransformedLatentModel",
    "choose_latent_dim",
    "choose_num_inducing",
    "choose_scaling",
    "evidence_lengthscales",
    "find_lengthscales",
    "find_noise_spread",
    "latent_dim_of",
    "start_from_data",
    "start_from_prior",
]
