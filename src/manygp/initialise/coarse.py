"""A start that the inducing points can follow.

The data may ask for functions of which a given number of inducing points sees only a part: rough functions, many input
dimensions. The bound counts what is left open against the noise, and a run that begins there spends most of its steps
on the way to a smoother process with more noise. That way is short when the bound itself is asked where it leads.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.initialise.inducing import greedy_inducing, sample_cells
from manygp.kernels import LatentKernel, is_fused, rescale_kernel
from manygp.likelihoods import Gaussian
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.variational import GaussianEvidence, InducingGP, NaturalPosterior

__all__ = ["coarsen"]

# Mean variance that inducing points may leave open, in noise variances: a run finds its way from there by itself.
_MOST_OPEN = 5.0
# Cells that bounds are computed from and inducing points are chosen among, for every inducing point.
_CELLS_PER_POINT, _LEAST_CELLS = 5, 1000
# The most steps along each direction of the search: two lengthen by 2, curve as much, or multiply the noise by 4.
_FARTHEST = (6, 8, 10)
# The first step of the search, halved once it leads nowhere.
_FIRST_STEP = 2
# In nats a cell: a rise of the bound that is worth a step.
_LEAST_RISE = 1e-3

# Steps towards longer lengthscales of the inputs, more curvature along the latents, and more noise.
_Place = tuple[int, int, int]


def coarsen(model: TransformedLatentModel, table: Table, scaling: Scaling, rng: np.random.Generator) -> bool:
    """Where inducing points leave far more open than the noise, move kernel, noise and Z to where the bound is higher.

    This is for Gaussian noise, and for a kernel with a lengthscale for every input and latent dimension; returns
    whether anything has changed.
    """
    (m, dim), likelihood = model.gp.Z.shape, model.likelihood
    if not (isinstance(likelihood, Gaussian) and is_fused(model.gp.kernel) and dim == len(model.units)):
        return False
    x, output, y = sample_cells(table, scaling, max(_LEAST_CELLS, _CELLS_PER_POINT * m), rng)
    with torch.no_grad():
        e = model.embed(torch.as_tensor(x), model.latents.mean[torch.as_tensor(output)])
        search = _Search(model.gp, likelihood, e, torch.as_tensor(y), table)
        if search.open_share() <= _MOST_OPEN:
            return False
        place = search.climb()
        search.go_to(place)
    return any(place)


class _Search:
    """Pattern search for the start with the highest bound; every place that was visited is remembered."""

    def __init__(
        self, gp: InducingGP, likelihood: Gaussian, e: Float[Tensor, "b e"], y: Float[Tensor, " b"], table: Table
    ):
        self.gp, self.likelihood, self.e, self.y = gp, likelihood, e, y
        self.weight, self.num_features = table.num_observed / len(y), table.num_features
        kernel = gp.kernel
        self.lengthscale = kernel.base_kernel.lengthscale.detach().clone().view(-1)
        self.outputscale, self.noise = float(kernel.outputscale), float(likelihood.noise.mean())
        self.share = float(kernel.share) if isinstance(kernel, LatentKernel) else 1.0
        self.points: dict[tuple[int, int], Tensor] = {(0, 0): gp.Z.detach().clone()}
        self.bounds: dict[_Place, float] = {}

    def open_share(self) -> float:
        """Mean variance that the inducing points leave open, in noise variances."""
        self.go_to((0, 0, 0))
        evidence = self._evidence()
        return float(evidence.diagonal_sum - evidence.AA.trace()) / len(self.y) / self.noise

    def go_to(self, place: _Place) -> None:
        """Set kernel, noise and Z."""
        longer, curved, noisier = place
        lengthscale = self.lengthscale.clone()
        lengthscale[: self.num_features] *= 2.0 ** (longer / 2)
        # The linear part of the covariance over latents, σ² / u², stays as large as it was.
        lengthscale[self.num_features :] *= 2.0 ** (-curved / 2)
        # ... and so does what outputs share, c σ².
        rescale_kernel(self.gp.kernel, lengthscale, self.outputscale * 2.0**-curved, self.share * 2.0**curved)
        self.likelihood.noise = torch.tensor(self.noise * 2.0**noisier, dtype=torch.float64)
        if (longer, curved) not in self.points:
            self.points[longer, curved] = greedy_inducing(self.gp.kernel, self.e, len(self.gp.Z))
        self.gp.Z.copy_(self.points[longer, curved])

    def bound(self, place: _Place) -> float:
        """The bound per cell with the best q(u)."""
        if place not in self.bounds:
            self.go_to(place)
            posterior = NaturalPosterior(len(self.gp.Z)).to(self.e.device)
            data, q = self._evidence().natural_step(posterior, self.weight, 1.0)
            self.bounds[place] = float(self.weight * data - q.kl()) / (self.weight * len(self.y))
        return self.bounds[place]

    def climb(self) -> _Place:
        """The best place that steps of falling size along one direction after the other lead to."""
        place, step = (0, 0, 0), _FIRST_STEP
        while step:
            before = place
            for axis in (2, 0, 1):
                place = self._climb_along(axis, step, place)
            if place == before:
                step //= 2
        return place

    def _climb_along(self, axis: int, step: int, place: _Place) -> _Place:
        farthest = (*_FARTHEST[:2], 0) if self.likelihood.is_fixed else _FARTHEST
        for move in (step, -step):
            while True:
                longer, curved, noisier = (k + move * (i == axis) for i, k in enumerate(place))
                there = (longer, curved, noisier)
                is_inside = all(0 <= k <= most for k, most in zip(there, farthest, strict=True))
                if not is_inside or self.bound(there) < self.bound(place) + _LEAST_RISE:
                    break
                place = there
        return place

    def _evidence(self) -> GaussianEvidence:
        gp, noise = self.gp, self.likelihood.noise.mean()
        return GaussianEvidence.from_batch(gp.kernel, self.e, gp.Z, self.y, noise, gp.jitter)
