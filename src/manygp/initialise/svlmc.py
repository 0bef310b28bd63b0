"""Where the SV-LMC begins: mixing weights and processes from a factorisation of the table."""

import numpy as np
import torch

from manygp.data.factorisation import Factorisation
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.inducing import sample_cells
from manygp.initialise.processes import place_points, variance_left
from manygp.initialise.series import factor_series, series_kernels, weight_variance
from manygp.initialise.survey import Survey
from manygp.likelihoods import Gaussian
from manygp.models.svlmc import LinearMixingModel

__all__ = ["initialise"]

# The least noise to start from.
_MIN_NOISE = 1e-4
# Standard deviation of weights that start at random.
_RANDOM_STD = 0.1
# Cells that parameters of the likelihood start from.
_SAMPLE_CELLS = 100_000


@torch.no_grad()
def initialise(model: LinearMixingModel, survey: Survey, found: Lengthscales, factors: Factorisation | None) -> None:
    """Start with weights and kernels from a factorisation, inducing points among the inputs, and its noise."""
    table, scaling, rng = survey.values, survey.scaling, survey.rng("mixing")
    processes, mixing, seen = model.processes, model.mixing, (table.count_per_output() > 0)[:, None]
    processes.units.copy_(torch.as_tensor(found.lengthscale))
    L = processes.kernels.size
    if factors is None:
        weights, std = rng.standard_normal(mixing.mean.shape), np.full(mixing.mean.shape, _RANDOM_STD)
        lengthscale = torch.ones(1, table.num_features, dtype=torch.float64)
        outputscale = torch.full((1,), found.signal / L, dtype=torch.float64)
    else:
        series = factor_series(factors, L, seen[:, 0], rng)
        weights, std = series.W, np.sqrt(weight_variance(table, series, found.noise))
        lengthscale, outputscale = series_kernels(processes.kernels, table, scaling, series, found, rng)
    processes.kernels.rescale(lengthscale, outputscale)
    place_points(processes, table, scaling, rng)
    # The weights of outputs without observations stay at their prior.
    mixing.mean.copy_(torch.as_tensor(np.where(seen, weights, 0.0)))
    if mixing.posterior == "diagonal":
        mixing.log_std.copy_(torch.as_tensor(np.log(np.where(seen, std, 1.0))))
    if isinstance(model.likelihood, Gaussian):
        # Weights have mean square 1, so that what is left open of all processes adds up.
        left = float(variance_left(processes, table, scaling).sum())
        model.likelihood.noise = torch.tensor(max(found.noise + left, _MIN_NOISE), dtype=torch.float64)
    if survey.levels is not None:
        _initialise_levels(model, survey)


def _initialise_levels(model: LinearMixingModel, survey: Survey) -> None:
    """Set the constants of outputs that cannot be centred, and the likelihood around them, from a sample of cells."""
    assert model.bias is not None
    model.bias.copy_(torch.as_tensor(survey.levels).unsqueeze(-1))
    _, output, y = sample_cells(survey.table, survey.scaling, _SAMPLE_CELLS, survey.rng("likelihood"))
    which = torch.as_tensor(output)
    model.likelihood.start_from(torch.as_tensor(y), which, model.bias[which, 0])
