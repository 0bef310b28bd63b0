"""Time and memory of the predictive mixture over a whole grid, beside GPyTorch sample by sample.

`python -m benchmarks.predict [--quick]` fits 3,395 stations x 30 months for an epoch, predicts every cell with 20 draws
of the latent vectors, asks a GPyTorch sparse GP with the same kernel, inducing points and q(u) for its predictive
distribution at the same embeddings, one draw at a time, and prints one JSON line. Times are medians of interleaved
repeats.
"""

import argparse
import json
import resource
import statistics
import time
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

import manygp
from manygp.data.climate import make_climate


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
        draws = model.latents.sample(torch.arange(p), estimator.num_samples, estimator._seed)
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


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the stations, fewer repeats")
    arguments = parser.parse_args()
    stations = make_climate(340 if arguments.quick else 3_395, 30)
    # Without effects of single inputs, which GPyTorch has not.
    settings = {"latent_dim": 3, "num_inducing": 200, "epochs": 1, "corrections": ("noise",), "progress": False}
    estimator = manygp.TLVMOGP(**settings).fit(stations.X, stations.Y)
    before = peak_mb()
    estimator.predict_dist(stations.X, observation_noise=False).variance.sum()
    extra = peak_mb() - before
    gp, points = _GPyTorchGP(estimator.model_).eval(), embeddings(estimator, stations.X)
    ours, theirs = [], []
    for _ in range(2 if arguments.quick else 5):
        started = time.perf_counter()
        dist = estimator.predict_dist(stations.X, observation_noise=False)
        variance = dist.variance
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        _, reference = gpytorch_mixture(gp, points)
        theirs.append(time.perf_counter() - started)
    scaled = variance.reshape(-1) / np.square(np.tile(estimator.scaling_.y_scale, len(stations.X)))
    print(
        json.dumps(
            {
                "benchmark": "predict",
                "cells": variance.size,
                "num_samples": estimator.num_samples,
                "num_inducing": len(estimator.inducing_points_),
                "seconds": round(statistics.median(ours), 3),
                "gpytorch_seconds": round(statistics.median(theirs), 3),
                "speedup_vs_gpytorch": round(statistics.median(theirs) / statistics.median(ours), 2),
                "extra_memory_mb": round(extra, 1),
                "largest_relative_difference": float(np.abs(reference.numpy() / scaled - 1.0).max()),
            }
        )
    )


if __name__ == "__main__":
    main()
