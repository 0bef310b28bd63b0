"""Where the OILMM begins: basis, kernels and noise from a factorisation of the table."""

import numpy as np
import torch

from manygp.data.factorisation import Factorisation
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.processes import place_points, variance_left
from manygp.initialise.series import factor_series, series_kernels
from manygp.initialise.survey import Survey
from manygp.models.oilmm import OrthogonalMixingModel
from manygp.variational import InducingGP

__all__ = ["initialise"]

# The least noise to start from.
_MIN_NOISE = 1e-4
# White noise of a latent process as a share of its variance.
_NOISE_SHARE = 0.01


@torch.no_grad()
def initialise(
    model: OrthogonalMixingModel, survey: Survey, found: Lengthscales, factors: Factorisation | None
) -> None:
    """Start with the basis and kernels of a factorisation, inducing points among the inputs, and its noise."""
    table, scaling, rng = survey.values, survey.scaling, survey.rng("mixing")
    basis, processes, seen = model.basis, model.processes, table.count_per_output() > 0
    basis.seen.copy_(torch.as_tensor(seen))
    processes.units.copy_(torch.as_tensor(found.lengthscale))
    q = len(basis.raw_scale)
    if factors is None:
        weight = torch.eye(table.num_outputs, q, dtype=torch.float64)
        S = torch.ones(q, dtype=torch.float64)
        lengthscale, outputscale = torch.ones(1, table.num_features, dtype=torch.float64), S * found.signal
    else:
        series = factor_series(factors, q, seen, rng)
        # Columns that the table does not support are completed to an orthonormal basis.
        weight = torch.as_tensor(np.linalg.qr(series.W)[0])
        variance = torch.as_tensor(series.variance)
        S = variance * max(int(seen.sum()), 1)
        lengthscale, outputscale = series_kernels(processes.kernels, table, scaling, series, found, rng)
        outputscale = outputscale / variance
    processes.kernels.rescale(lengthscale, outputscale)
    D = _NOISE_SHARE * model._prior_variance()
    if isinstance(processes, InducingGP):
        place_points(processes, table, scaling, rng)
        # What inducing points cannot represent looks like white noise.
        D = D + variance_left(processes, table, scaling)
    basis.start(weight, S, D)
    model.likelihood.noise = torch.tensor(max(found.noise, _MIN_NOISE), dtype=torch.float64)
