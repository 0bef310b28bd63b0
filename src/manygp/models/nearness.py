"""Coordinates of cells in which close means correlated, by what inducing points leave to neighbours.

With S = R − A Aᵀ and ρ(·, ·) its correlations, every input is counted in the distance over which ρ² falls to exp(−1/2),
and outputs lie at φ_p with |φ_p − φ_q|² ≈ 2 − 2ρ² for what they do at one input.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.data.table import FloatArray, IntArray
from manygp.kernels import cross_covariance
from manygp.terms import Points

if TYPE_CHECKING:
    from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["Nearness"]

# Cells that distances are tried at, and outputs and inputs that all outputs are held against.
_TRIED_CELLS, _LANDMARKS, _TRIED_INPUTS = 48, 64, 4
# Distances that are tried, in ranges of the inputs, and their number.
_SHORTEST, _LONGEST, _DISTANCES = 1e-6, 3.0, 64
# Coordinates of an output, and outputs that are held against the landmarks at a time.
_DIMENSIONS, _CHUNK_OUTPUTS = 6, 20_000


class Nearness:
    """Coordinates of inputs and outputs by the correlations of a model.

    Parameters
    ----------
    model
        The model.
    x
        Inputs of observed cells, in scaled units.
    num_outputs
        Outputs that have such cells: the first of all.
    """

    @torch.no_grad()
    def __init__(self, model: "TransformedLatentModel", x: Float[Tensor, "n d"], num_outputs: int):
        self._model, self._x = model, x.double()
        self._landmarks = _spread(num_outputs, _LANDMARKS, x.device)
        self.units = self._units()

    @torch.no_grad()
    def inputs(self, x: Float[Tensor, "b d"]) -> FloatArray:
        """Coordinates of inputs."""
        return (x.detach().double() / self.units).cpu().numpy()

    @torch.no_grad()
    def outputs(self) -> FloatArray:
        """Coordinates of all outputs of the model, shape (p, 6)."""
        among = self._shared(self._landmarks)
        # B = ρ² is a covariance: φ = B_pL U Λ^−½ for its largest eigenvalues Λ among landmarks.
        Λ, U = torch.linalg.eigh(among)
        kept = slice(-min(_DIMENSIONS, len(Λ)), None)
        U = U[:, kept] / Λ[kept].clamp(min=1e-9 * Λ[-1].item()).sqrt()
        every = torch.arange(len(self._model.latents.mean), device=U.device)
        φ = torch.cat([self._shared(part) @ U for part in every.split(_CHUNK_OUTPUTS)]).cpu().numpy()
        # What is an output's own has a direction of its own.
        own = np.random.default_rng(0).standard_normal((len(φ), _DIMENSIONS))
        own /= np.linalg.norm(own, axis=1, keepdims=True)
        own *= np.sqrt(np.clip(1.0 - np.square(φ).sum(1, keepdims=True), 0.0, 1.0))
        own[:, : φ.shape[1]] += φ
        return own

    def cells(self, row: IntArray, outputs: IntArray) -> FloatArray:
        """Coordinates of cells, by the numbers of their inputs among x, shape (b, d + 6)."""
        return np.concatenate([self.inputs(self._x)[row], self.outputs()[outputs]], axis=1)

    def _units(self) -> Float[Tensor, " d"]:
        """How far each input reaches: up to where ρ², averaged over some cells, has fallen to exp(−1/2)."""
        x, device = self._x, self._x.device
        n, d = x.shape
        reach = (x.amax(0) - x.amin(0)).clamp(min=1e-12)
        distance = torch.logspace(np.log10(_SHORTEST), np.log10(_LONGEST), _DISTANCES, dtype=torch.float64).to(device)
        # Shifts along one input each, and none before them, shape (1 + d t, d)
        along = (torch.eye(d, dtype=torch.float64, device=device) * reach).unsqueeze(1) * distance.view(1, -1, 1)
        shift = torch.cat([x.new_zeros(1, d), along.flatten(0, 1)])
        at = torch.arange(_TRIED_CELLS, device=device)
        base = x[at * n // _TRIED_CELLS].unsqueeze(1)
        output = self._landmarks[at % len(self._landmarks)].unsqueeze(1)
        # At another input even where it is the same, so that shocks are left out
        a = self._points(base, output, 0)
        b = self._points(base + shift, output.expand(-1, len(shift)), 1)
        power = self._left(a, b).squeeze(1).square().sum(0)
        has_fallen = (power[1:] < np.exp(-0.5) * power[0]).view(d, -1)
        first = torch.where(has_fallen.any(1), has_fallen.int().argmax(1), len(distance) - 1)
        return reach * distance[first]

    def _shared(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, "p l"]:
        """Squared correlations of outputs with landmarks at the same input, averaged over some inputs."""
        x = self._x[_spread(len(self._x), _TRIED_INPUTS, self._x.device)].unsqueeze(1)
        total = x.new_zeros(len(outputs), len(self._landmarks))
        p, q = x.new_zeros(len(outputs)), x.new_zeros(len(self._landmarks))
        for one in x:
            a, b = (self._points(one.expand(len(which), -1), which, 0) for which in (outputs, self._landmarks))
            total += self._left(a, b)
            p, q = p + self._variance(a), q + self._variance(b)
        return (total.square() / torch.outer(p, q)).clamp(max=1.0)

    def _points(self, x: Float[Tensor, "*g d"], outputs: Int[Tensor, "*g"], row: int) -> Points:
        return Points(x, outputs, torch.full_like(outputs, row), self._model.latents.mean[outputs].double())

    def _left(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        """S between all pairs of cells of each group."""
        (ea, A), (eb, B) = self._explained(a), self._explained(b)
        return cross_covariance(self._model.gp.kernel, ea, eb) - A @ B.mT + self._model.terms.covariance(a, b)

    def _variance(self, a: Points) -> Float[Tensor, " b"]:
        one = Points(*(part.unsqueeze(1) for part in vars(a).values()))
        return self._left(one, one).flatten().clamp(min=1e-12)

    def _explained(self, a: Points) -> tuple[Float[Tensor, "*g e"], Float[Tensor, "*g m"]]:
        e = self._model.embed(a.x.flatten(0, -2), a.h.flatten(0, -2))
        A = self._model.explained(e)
        return e.view(*a.outputs.shape, -1), A.view(*a.outputs.shape, -1)


def _spread(n: int, count: int, device: torch.device) -> Int[Tensor, " c"]:
    """At most so many of n numbers, evenly spread."""
    count = min(n, count)
    return torch.arange(count, device=device) * n // count
