"""Where a batch of sparse GPs begins: inducing points among the inputs, kernels by evidence."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.inducing import greedy_inducing
from manygp.variational import InducingGP

__all__ = ["choose_num_points", "place_points", "start_processes", "variance_left"]

# Inducing points of a process, at least and at most.
_MIN_POINTS, _MAX_POINTS = 20, 200
# Inputs that they are chosen among.
_MAX_CANDIDATES = 2000
# Numbers of all q(u) together.
_MAX_POSTERIOR_NUMBERS = 20_000_000


def choose_num_points(table: Table, scaling: Scaling, found: Lengthscales, num_processes: int = 1) -> int:
    """Inducing points of a process by how many pieces its functions have.

    Where processes are many, all their q(u) together have a limit.
    """
    pieces = found.num_pieces(scaling.scale_x(table.X))
    most = int((_MAX_POSTERIOR_NUMBERS / num_processes) ** 0.5)
    return max(1, min(max(int(pieces), _MIN_POINTS), _MAX_POINTS, table.num_inputs, most))


@torch.no_grad()
def start_processes(
    processes: InducingGP, table: Table, scaling: Scaling, found: Lengthscales, rng: np.random.Generator
) -> None:
    """Start in lengthscale units, with inducing points among the inputs."""
    processes.units.copy_(torch.as_tensor(found.lengthscale))
    ones = torch.ones(1, table.num_features, dtype=torch.float64)
    processes.kernels.rescale(ones, torch.full((1,), found.signal, dtype=torch.float64))
    place_points(processes, table, scaling, rng)


@torch.no_grad()
def variance_left(processes: InducingGP, table: Table, scaling: Scaling) -> Float[Tensor, " q"]:
    """Mean variance of every process that its inducing points leave open at the inputs."""
    chosen = np.linspace(0, table.num_inputs - 1, min(table.num_inputs, _MAX_CANDIDATES)).astype(int)
    projection = processes.project(torch.as_tensor(scaling.scale_x(table.X[chosen])))
    return (projection.diagonal - projection.A.square().sum(-1)).clamp(min=0.0).mean(-1)


@torch.no_grad()
def place_points(processes: InducingGP, table: Table, scaling: Scaling, rng: np.random.Generator) -> None:
    """Put the inducing points of every process where they explain most."""
    chosen = rng.choice(table.num_inputs, min(table.num_inputs, _MAX_CANDIDATES), replace=False)
    candidates = torch.as_tensor(scaling.scale_x(table.X[chosen])) / processes.units
    processes.Z.copy_(greedy_inducing(processes.kernels, candidates, processes.num_inducing))
