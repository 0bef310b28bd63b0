"""Initialisation: what a table tells before training, and where each model begins with it."""

from manygp.initialise.evidence import Lengthscales, evidence_lengthscales
from manygp.initialise.start import (
    choose_latent_dim,
    choose_num_inducing,
    choose_scaling,
    find_lengthscales,
    find_noise_spread,
    latent_dim_of,
    start_from_data,
    start_from_prior,
)

__all__ = [
    "Lengthscales",
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
