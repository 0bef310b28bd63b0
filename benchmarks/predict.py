"""Time and memory of predictions over a whole grid: the mixture over draws, and neighbours.

`python -m benchmarks.predict [--quick] [--inputs 30] [--outputs 3395] [--engine mixture neighbors]` fits stations x
months for an epoch and prints one JSON line. The mixture with 20 draws of the latent vectors stands beside a GPyTorch
sparse GP with the same kernel, inducing points and q(u) at the same embeddings, one draw at a time, and beside
`num_samples="auto"`; quantiles by Newton steps beside bisections; predictions from neighbours in tiles beside those of
the same cells one by one. Times are those of the processor, medians of interleaved repeats.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

import manygp
from manygp.data.climate import Stations, make_climate
from manygp.models.tiles import Conditioned
from manygp.summaries.mixture import Mixture


class _GPyTorchGP(gpytorch.models.ApproximateGP):
    """GPyTorch's sparse GP with given inducing points and kernel, and the posterior of a fitted model."""

    def __init__(self, model: Any):
        gp = model.gp
        super().__init__(VariationalStrategy(self, gp.Z.detach(), CholeskyVariationalDistribution(len(gp.Z))))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gp.kernel
        q = gp.posterior.moments()
        with torch.no_grad():
            distribution = self.variational_strategy._variational_distribution
            distribution.variational_mean.data = q.mean.clone()
            distribution.chol_variational_covar.data = torch.linalg.cholesky(q.covariance)
            self.variational_strategy.variational_params_initialized.fill_(1)

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def embeddings(estimator: manygp.TLVMOGP, X: np.ndarray) -> list[Tensor]:
    """Embeddings of every cell of the grid, one tensor for each draw of the latent vectors."""
    model, p = estimator.model_, estimator.n_outputs_
    x = torch.as_tensor(estimator.scaling_.scale_x(X)).repeat_interleave(p, 0)
    with torch.no_grad():
        draws = model.latents.sample(torch.arange(p), 20, estimator._seed)
        return [model.embed(x, h.repeat(len(X), 1)) for h in draws]


def gpytorch_mixture(gp: _GPyTorchGP, points: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance of f over the draws, sample by sample."""
    means, variances = [], []
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        for e in points:
            gp.variational_strategy._clear_cache()
            f = gp(e)
            means.append(f.mean)
            variances.append(f.variance)
    mean = torch.stack(means)
    return mean.mean(0), torch.stack(variances).mean(0) + mean.var(0, unbiased=False)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor that a call takes, and what it returns; time of the wall is that of others too."""
    started = time.process_time()
    result = function()
    return time.process_time() - started, result


def bisected(dist: manygp.Prediction, level: float) -> np.ndarray:
    """The quantile of a mixture of Gaussians by sixty bisections, which the library took before Newton steps."""

    def bisect(cells: Mixture) -> Tensor:
        m, v = cells.components()
        reach = (v / min(level, 1.0 - level)).sqrt()
        lower, upper = (m - reach).amin(0), (m + reach).amax(0)
        for _ in range(60):
            middle = 0.5 * (lower + upper)
            below = cells.cdf(middle) < level
            lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
        return (0.5 * (lower + upper)).unsqueeze(0)

    return dist._scaling.unscale_mean(dist._map(bisect, 1), dist._outputs)[0]


def errors_of_std(estimator: manygp.TLVMOGP, X: np.ndarray) -> dict[str, float]:
    """Median relative errors of standard deviations of f by both ways, beside 4,000 draws, at 200 cells."""
    rng = np.random.default_rng(0)
    x, outputs = X[rng.integers(len(X), size=200)], rng.integers(estimator.n_outputs_, size=200)
    spread = {}
    for count in (4_000, 20, "auto"):
        estimator.num_samples = count
        spread[count] = estimator.predict_cells(x, outputs, observation_noise=False).std
    return {
        f"error_of_std_{name}": float(np.median(np.abs(spread[count] / spread[4_000] - 1.0)))
        for name, count in (("draws", 20), ("auto", "auto"))
    }


def mixture(stations: Stations, settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The mixture over 20 draws, GPyTorch's, and one component where f is linear; a quantile by both ways."""
    estimator = manygp.TLVMOGP(num_neighbors=0, **settings).fit(stations.X, stations.Y)
    before = peak_mb()
    estimator.predict_dist(stations.X, observation_noise=False).variance.sum()
    extra = peak_mb() - before
    gp, points = _GPyTorchGP(estimator.model_).eval(), embeddings(estimator, stations.X)
    seconds: dict[str, list[float]] = {"draws": [], "auto": [], "gpytorch": [], "newton": [], "bisection": []}
    for _ in range(repeats):
        estimator.num_samples = 20
        used, variance = timed(lambda: estimator.predict_dist(stations.X, observation_noise=False).variance)
        seconds["draws"].append(used)
        used, (_, reference) = timed(lambda: gpytorch_mixture(gp, points))
        seconds["gpytorch"].append(used)
        few = estimator.predict_dist(stations.X[: max(1, 20_000 // estimator.n_outputs_)])
        few.mean.sum()
        used, newton = timed(lambda few=few: few.quantile(0.95))
        seconds["newton"].append(used)
        used, bisection = timed(lambda few=few: bisected(few, 0.95))
        seconds["bisection"].append(used)
        estimator.num_samples = "auto"
        used, _ = timed(lambda: estimator.predict_dist(stations.X, observation_noise=False).variance)
        seconds["auto"].append(used)
    scaled = variance.reshape(-1) / np.square(np.tile(estimator.scaling_.y_scale, len(stations.X)))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    errors = errors_of_std(estimator, stations.X)
    return {
        "num_inducing": len(estimator.inducing_points_),
        **{f"{name}_seconds": round(value, 3) for name, value in median.items()},
        "speedup_vs_gpytorch": round(median["gpytorch"] / median["draws"], 2),
        "speedup_of_auto": round(median["draws"] / median["auto"], 2),
        "is_linear": estimator._predictor(estimator.model_).share == 1.0,
        **errors,
        "speedup_of_quantiles": round(median["bisection"] / median["newton"], 2),
        "largest_difference_of_quantiles": float(np.abs(newton - bisection).max()),
        "extra_memory_mb": round(extra, 1),
        "largest_relative_difference": float(np.abs(reference.numpy() / scaled - 1.0).max()),
    }


def neighbors(stations: Stations, settings: dict[str, Any], num_cells: int) -> dict[str, Any]:
    """Predictions from neighbours: tiles of cells on the first rows of the table, and some of these one by one."""
    estimator = manygp.TLVMOGP(num_neighbors=48, **settings).fit(stations.X, stations.Y)
    p, predictor = estimator.n_outputs_, estimator._predictor(estimator.model_)
    cells = torch.arange(min(len(stations.X) * p, num_cells) // p * p)
    x = torch.as_tensor(estimator.scaling_.scale_x(stations.X))[cells // p]
    tiled, (mean, variance) = timed(lambda: predictor(x, cells % p))
    few = slice(0, min(len(cells), 1_000))
    single, alone = timed(lambda: Conditioned.joined(predictor.one_by_one(x[few], cells[few] % p)))
    expected, spread = alone.mean, alone.variance
    relative = (variance[0, few] / spread).sqrt() - 1.0
    return {
        "cells": len(cells),
        "microseconds_a_cell": round(1e6 * tiled / len(cells), 1),
        "one_by_one": round(1e6 * single / len(expected), 1),
        "speedup": round(single / len(expected) * len(cells) / tiled, 2),
        "largest_error_of_mean_in_std": float(((mean[0, few] - expected).abs() / spread.sqrt()).max()),
        "largest_relative_error_of_std": float(relative.abs().max()),
    }


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the stations, fewer repeats")
    parser.add_argument("--inputs", type=int, default=30)
    parser.add_argument("--outputs", type=int, default=3_395)
    parser.add_argument("--engine", choices=("mixture", "neighbors"), nargs="+", default=("mixture", "neighbors"))
    arguments = parser.parse_args()
    stations = make_climate(arguments.outputs // (10 if arguments.quick else 1), arguments.inputs)
    # Without effects of single inputs, which GPyTorch has not.
    settings = {"latent_dim": 3, "num_inducing": 200, "epochs": 1, "corrections": ("noise",), "progress": False}
    result: dict[str, Any] = {"benchmark": "predict", "shape": stations.Y.shape}
    if "mixture" in arguments.engine:
        result["mixture"] = mixture(stations, settings, 2 if arguments.quick else 5)
    if "neighbors" in arguments.engine:
        result["neighbors"] = neighbors(stations, settings, 10_000 if arguments.quick else 100_000)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
