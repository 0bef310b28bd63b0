"""Where a regression network begins: weights that hardly vary over the inputs, from a factorisation of the table."""

import numpy as np
import torch
from torch import nn

from manygp.data.factorisation import Factorisation
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.inducing import sample_cells
from manygp.initialise.series import factor_series, weight_variance
from manygp.initialise.survey import Survey
from manygp.kernels import rescale_kernel
from manygp.likelihoods import Gaussian
from manygp.models.sgprn import RegressionNetwork

__all__ = ["initialise", "initialise_at_prior"]

# Lengthscale of the weights in ranges of the inputs: nearly constant, so that the network begins as a linear mixture.
_WEIGHT_RANGES = 2.0
# Share of the latent processes' variance that is noise of their own.
_LATENT_NOISE_SHARE = 0.05
# The least noise and signal to start from, and cells that parameters of the likelihood start from.
_MIN_NOISE, _MIN_SIGNAL, _SAMPLE_CELLS = 1e-4, 1e-3, 100_000


@torch.no_grad()
def initialise(model: RegressionNetwork, survey: Survey, found: Lengthscales, factors: Factorisation | None) -> None:
    """Start with processes and constant weights from a factorisation, its noise, and lengthscales by evidence."""
    table, scaling, rng = survey.values, survey.scaling, survey.rng("mixing")
    n, L = model.latents.shape
    p = table.num_outputs
    seen = table.count_per_output() > 0
    noise = max(found.noise, _MIN_NOISE)
    if factors is None:
        F, W = np.zeros((n, L)), np.where(seen[:, None], rng.standard_normal((p, L)), 0.0)
        signal, variance = found.signal / L, np.full(L, 0.1)
    else:
        series = factor_series(factors, L, seen, rng)
        F, W = series.F, series.W
        used = np.square(F).sum(0) > 0
        signal = float(series.variance[used].mean()) if used.any() else found.signal / L
        variance = weight_variance(table, series, noise)[seen].mean(0)
    signal = max(signal, _MIN_SIGNAL)
    rescale_kernel(model.latent_kernel, torch.as_tensor(found.lengthscale), signal)
    span = np.ptp(scaling.scale_x(table.X), axis=0)
    rescale_kernel(model.weight_kernel, torch.as_tensor(_WEIGHT_RANGES * np.where(span > 0, span, 1.0)), 1.0)
    model.log_latent_noise.fill_(float(np.log(_LATENT_NOISE_SHARE * signal)))
    Cf, Cw = model.whitening()
    model.latents.mean.copy_(torch.linalg.solve_triangular(Cf, torch.as_tensor(F), upper=False))
    # Ũ_p = C_w⁻¹ 1 w_pᵀ
    ones = torch.linalg.solve_triangular(Cw, torch.ones(n, 1, dtype=torch.float64), upper=False)
    model.weights.mean.copy_(ones * torch.as_tensor(W).unsqueeze(1))
    # What the cells of an input leave open about it, and those of an output about its weights.
    open_share = noise / (noise + signal * max(table.num_observed / n, 1.0))
    model.latents.set_covariance(1, open_share * torch.eye(L, dtype=torch.float64))
    model.weights.set_covariance(1, torch.diag(torch.as_tensor(variance)))
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise, dtype=torch.float64)
    if survey.levels is not None and model.bias is not None:
        model.bias.copy_(torch.as_tensor(survey.levels).unsqueeze(-1))
        sample = sample_cells(survey.table, scaling, _SAMPLE_CELLS, survey.rng("likelihood"))
        _, output, y = (torch.as_tensor(part) for part in sample)
        model.likelihood.start_from(y, output, model.bias[output, 0])


@torch.no_grad()
def initialise_at_prior(model: RegressionNetwork, noise_std: float, generator: torch.Generator) -> None:
    """Posterior covariances at the prior, means standard normal draws: at zero nothing would ever pull them away."""
    nn.init.normal_(model.latents.mean, generator=generator)
    nn.init.normal_(model.weights.mean, generator=generator)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise_std**2, dtype=torch.float64)
