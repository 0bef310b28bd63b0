"""Time of one training step beside GPyTorch's and beside the least that the products in it can take.

`python -m benchmarks.step [--quick]` prints one JSON line. A step is the bound on a batch of embeddings, its gradients
for the embeddings, inducing points, kernel and noise, and the updates: a natural step and Adam here, Adam alone in
GPyTorch (its stochastic variational GP: train mode, `VariationalStrategy`, `CholeskyVariationalDistribution`). The
limit is two B x M x M products and one exponential of B x M numbers. Times are medians of interleaved repeats.

`--likelihood zinb` takes counts: zero-inflated negative binomial here, negative binomial in GPyTorch, which has no
other; our side does more. `--model sv-lmc` times steps of that model and `--model ind-gp` a whole fit, see
`benchmarks/rival_steps.py`.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

from benchmarks.rival_steps import RIVAL_MODELS, run_rival
from manygp.kernels import make_kernel
from manygp.likelihoods import make_likelihood
from manygp.variational import InducingGP, NaturalPosterior

Step = Callable[[], Any]

# (cells, inducing points, embedding dimensions, dtype); the first is the one that the main figures speak of.
SETTINGS = [
    (2_700, 200, 4, torch.float64),
    (16_384, 500, 4, torch.float64),
    (4_096, 1_000, 4, torch.float64),
    (2_700, 200, 4, torch.float32),
    (16_384, 500, 4, torch.float32),
    (4_096, 1_000, 4, torch.float32),
]


# The one that the figures for counts speak of.
COUNT_SETTINGS = [(16_384, 500, 4, torch.float64), (4_096, 200, 4, torch.float64)]
# GPyTorch's likelihood that is nearest to ours.
RIVALS = {
    "gaussian": gpytorch.likelihoods.GaussianLikelihood,
    "zinb": gpytorch.likelihoods.NegativeBinomialLikelihood,
}


def make_batch(b: int, m: int, d: int, dtype: torch.dtype, likelihood: str) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, values and inducing points: a smooth function with noise, or counts that it is the log mean of."""
    generator = torch.Generator().manual_seed(0)
    e = torch.randn(b, d, generator=generator, dtype=torch.float64)
    y = torch.sin(2.0 * e).sum(-1) + 0.3 * torch.randn(b, generator=generator, dtype=torch.float64)
    Z = torch.randn(m, d, generator=generator, dtype=torch.float64)
    if likelihood != "gaussian":
        y = torch.poisson(torch.exp(0.5 * y), generator=generator)
    return e.to(dtype).requires_grad_(), y.to(dtype), Z


def our_step(b: int, m: int, d: int, dtype: torch.dtype, name: str) -> Step:
    """A step of this library."""
    e, y, Z = make_batch(b, m, d, dtype, name)
    gp, likelihood = (
        InducingGP(make_kernel("rbf", d, log_parameters=True), Z, NaturalPosterior(m)),
        make_likelihood(name, 1),
    )
    outputs = torch.zeros(b, dtype=torch.long)
    optimizer = torch.optim.Adam([*gp.parameters(), *likelihood.parameters()], lr=1e-3, fused=True)

    def step() -> None:
        evidence = gp.evidence(e, y, outputs, likelihood)
        data, q = gp.natural_step(evidence, 10.0, 0.1)
        optimizer.zero_grad()
        e.grad = None
        ((q.kl() - 10.0 * data) / b).backward()
        optimizer.step()

    return step


class _GPyTorchGP(gpytorch.models.ApproximateGP):
    def __init__(self, Z: Tensor):
        q = CholeskyVariationalDistribution(len(Z))
        super().__init__(VariationalStrategy(self, Z, q, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=Z.shape[1]))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_step(b: int, m: int, d: int, dtype: torch.dtype, name: str) -> Step:
    """A step of GPyTorch's stochastic variational GP on the same batch."""
    e, y, Z = make_batch(b, m, d, dtype, name)
    model, likelihood = _GPyTorchGP(Z.to(dtype)).to(dtype), RIVALS[name]().to(dtype)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=10 * b)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=1e-3, fused=True)
    model.train()
    likelihood.train()

    def step() -> None:
        optimizer.zero_grad()
        e.grad = None
        (-bound(model(e), y)).backward()
        optimizer.step()

    return step


def limit_step(b: int, m: int, d: int, dtype: torch.dtype, name: str) -> Step:
    """Two B x M x M products and one exponential of B x M numbers."""
    K = torch.rand(b, m, dtype=dtype)
    G = torch.rand(m, m, dtype=dtype)

    def step() -> None:
        K.T @ K
        K @ G
        K.exp()

    return step


def interleaved(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Median milliseconds of each step, taken in turn so that a slow moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(3):
            step()
    for _ in range(repeats):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def run(b: int, m: int, d: int, dtype: torch.dtype, likelihood: str, repeats: int) -> dict[str, Any]:
    """Times of one setting and their ratios."""
    makers = {"ours": our_step, "gpytorch": gpytorch_step, "limit": limit_step}
    ms = interleaved({name: make(b, m, d, dtype, likelihood) for name, make in makers.items()}, repeats)
    return {
        "cells": b,
        "num_inducing": m,
        "dtype": str(dtype).removeprefix("torch."),
        **{f"{name}_ms": round(value, 2) for name, value in ms.items()},
        "speedup_vs_gpytorch": round(ms["gpytorch"] / ms["ours"], 2),
        "times_limit": round(ms["ours"] / ms["limit"], 2),
    }


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first setting alone, fewer repeats")
    parser.add_argument("--likelihood", choices=RIVALS, default="gaussian")
    parser.add_argument("--model", choices=("tlvmogp", *RIVAL_MODELS), default="tlvmogp")
    arguments = parser.parse_args()
    if arguments.model != "tlvmogp":
        found = run_rival(arguments.model, 5 if arguments.quick else 15, interleaved)
        print(json.dumps({"benchmark": "step", "model": arguments.model, "threads": torch.get_num_threads()} | found))
        return
    settings, repeats = SETTINGS if arguments.likelihood == "gaussian" else COUNT_SETTINGS, 25
    if arguments.quick:
        settings, repeats = settings[:1], 15
    results = [run(*setting, arguments.likelihood, repeats if setting[0] < 10_000 else 8) for setting in settings]
    first = {key: results[0][key] for key in ("speedup_vs_gpytorch", "times_limit")}
    print(
        json.dumps(
            {"benchmark": "step", "likelihood": arguments.likelihood, "threads": torch.get_num_threads()}
            | first
            | {"settings": results}
        )
    )


if __name__ == "__main__":
    main()
