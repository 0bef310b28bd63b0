"""Time of SV-LMC steps and of Ind-GP fits beside the same models put together in GPyTorch, on one generated table.

Run by `python -m benchmarks.step --model sv-lmc` or `--model ind-gp`. The table has the size of the paper's ERA5
experiment, 30 inputs and 3,395 outputs, without gaps, which GPyTorch's multitask models do not take.
"""

import time
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.variational import CholeskyVariationalDistribution, LMCVariationalStrategy, VariationalStrategy
from torch import Tensor

import manygp
from manygp.data import Grid, GridPlan, Scaling
from manygp.likelihoods import Gaussian
from manygp.models.svlmc import LinearMixingModel, Mixing
from manygp.variational import CellBatch, InducingGP, KernelBatch, NaturalPosterior

__all__ = ["RIVAL_MODELS", "run_rival"]

RIVAL_MODELS = ("sv-lmc", "ind-gp")
NUM_INPUTS, NUM_OUTPUTS, NUM_LATENTS, NUM_INDUCING = 30, 3395, 100, 10
# Steps of Adam for the exact GPs of GPyTorch: as many as the paper gives them.
ADAM_STEPS = 50


def make_table() -> Grid:
    """Smooth series mixed at random, with noise."""
    rng = np.random.default_rng(0)
    X = np.linspace(0.0, 1.0, NUM_INPUTS)[:, None]
    series = np.column_stack([np.sin(2.0 * (k + 1) * X[:, 0] + k) for k in range(6)])
    Y = series @ rng.standard_normal((6, NUM_OUTPUTS)) + 0.2 * rng.standard_normal((NUM_INPUTS, NUM_OUTPUTS))
    return Grid(X, Y / Y.std())


def inducing_points() -> Tensor:
    """The same points for every process, on both sides."""
    return torch.linspace(0.0, 1.0, NUM_INDUCING, dtype=torch.float64).view(-1, 1).repeat(NUM_LATENTS, 1, 1)


# -- SV-LMC: a step on all cells ---------------------------------------------------------------------------------------


def our_mixing_step(table: Grid) -> Any:
    """A natural step and Adam, with weights as points, as GPyTorch has them."""
    kernels = KernelBatch("rbf", 1, NUM_LATENTS, log_parameters=True)
    processes = InducingGP(kernels, inducing_points(), NaturalPosterior(NUM_LATENTS, NUM_INDUCING))
    model = LinearMixingModel(processes, Gaussian(), Mixing(NUM_OUTPUTS, NUM_LATENTS, "point"))
    torch.manual_seed(0)
    torch.nn.init.normal_(model.mixing.mean)
    (batch,) = GridPlan(table, Scaling.fit(table, inputs=False, outputs="none")).epoch(np.random.default_rng(0))
    cells = CellBatch.from_arrays(batch, torch.float64, torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        optimizer.zero_grad()
        (-model.natural_elbo(cells, generator, 0.1).bound / len(cells.y)).backward()
        optimizer.step()

    return step


class _LinearMixture(gpytorch.models.ApproximateGP):
    def __init__(self) -> None:
        shape = torch.Size([NUM_LATENTS])
        q = CholeskyVariationalDistribution(NUM_INDUCING, batch_shape=shape)
        base = VariationalStrategy(self, inducing_points(), q, learn_inducing_locations=True)
        super().__init__(LMCVariationalStrategy(base, NUM_OUTPUTS, NUM_LATENTS, latent_dim=-1))
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(batch_shape=shape), batch_shape=shape
        )

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_mixing_step(table: Grid) -> Any:
    """GPyTorch's own linear model of coregionalisation on the same table, Adam on everything."""
    torch.manual_seed(0)
    model = _LinearMixture().double()
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(NUM_OUTPUTS, has_task_noise=False).double()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=table.num_inputs)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=1e-3, fused=True)
    X, Y = torch.as_tensor(table.X), torch.as_tensor(table.Y)
    model.train()
    likelihood.train()

    def step() -> None:
        optimizer.zero_grad()
        (-bound(model(X), Y)).backward()
        optimizer.step()

    return step


# -- Ind-GP: a whole fit -----------------------------------------------------------------------------------------------


class _ExactGPs(gpytorch.models.ExactGP):
    def __init__(self, X: Tensor, Y: Tensor, likelihood: gpytorch.likelihoods.GaussianLikelihood):
        super().__init__(X, Y, likelihood)
        shape = torch.Size([len(Y)])
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(batch_shape=shape), batch_shape=shape
        )

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_exact_fit(table: Grid) -> float:
    """All outputs as one batch of exact GPs, Adam on the evidence; returns the log evidence per cell."""
    Y = torch.as_tensor(table.Y).T.contiguous()
    X = torch.as_tensor(table.X).expand(len(Y), -1, -1).contiguous()
    shape = torch.Size([len(Y)])
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=shape).double()
    model = _ExactGPs(X, Y, likelihood).double()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()
    likelihood.train()
    for _ in range(ADAM_STEPS):
        optimizer.zero_grad()
        value = evidence(model(X), Y)
        (-value.sum()).backward()
        optimizer.step()
    return float(value.detach().mean())


def our_exact_fit(table: Grid) -> float:
    """The whole fit of the estimator, choices from the data included; returns the log evidence per cell."""
    model = manygp.IndGP(num_inducing=None, standardize=False, device="cpu", progress=False).fit(table.X, table.Y)
    return model.history_.records[-1].bound / table.num_observed


def run_rival(model: str, repeats: int, interleaved: Any) -> dict[str, Any]:
    """Times of a model here and in GPyTorch, and their ratio.

    Parameters
    ----------
    model
        "sv-lmc" or "ind-gp".
    repeats
        Steps of each that are timed; a fit is timed once.
    interleaved
        How steps are timed in turn.
    """
    table, sizes = make_table(), {"num_inputs": NUM_INPUTS, "num_outputs": NUM_OUTPUTS}
    if model == "sv-lmc":
        steps = {"ours": our_mixing_step(table), "gpytorch": gpytorch_mixing_step(table)}
        ms = interleaved(steps, repeats)
        sizes |= {"num_latents": NUM_LATENTS, "num_inducing": NUM_INDUCING}
        times = {f"{name}_ms": round(value, 1) for name, value in ms.items()}
        return sizes | times | {"speedup_vs_gpytorch": round(ms["gpytorch"] / ms["ours"], 2)}
    seconds, evidence = {}, {}
    fits = {"ours": our_exact_fit, "gpytorch": gpytorch_exact_fit}
    for name, fit in fits.items():
        # What is loaded on first use is no part of a fit.
        fit(Grid(table.X, table.Y[:, :20]))
        started = time.perf_counter()
        evidence[name] = fit(table)
        seconds[name] = time.perf_counter() - started
    return (
        sizes
        | {f"{name}_s": round(value, 2) for name, value in seconds.items()}
        | {f"{name}_log_evidence_per_cell": round(value, 4) for name, value in evidence.items()}
        | {"speedup_vs_gpytorch": round(seconds["gpytorch"] / seconds["ours"], 2)}
    )
