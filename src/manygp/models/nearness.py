"""Coordinates of cells in which close means correlated.

By what inducing points leave, S = R − A Aᵀ with correlations ρ, every input and every latent dimension reaches as far
as ρ² takes to fall to exp(−1/2); what an output does by itself has a direction of its own. By the kernel, they reach as
far as its lengthscales. Functions that are rough are told by the first, smooth ones by the second.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.data.table import FloatArray
from manygp.kernels import cross_covariance, is_fused
from manygp.terms import Points

if TYPE_CHECKING:
    from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["Nearness"]

# Cells that distances are tried at, and inputs at which outputs are asked what they do by themselves.
_TRIED_CELLS, _TRIED_INPUTS = 48, 4
# Distances that are tried, in ranges of inputs and latent vectors, and their number.
_SHORTEST, _LONGEST, _DISTANCES = 1e-6, 3.0, 48
# Dimensions in which outputs have directions of their own, and outputs that are asked at a time.
_DIRECTIONS, _CHUNK_OUTPUTS = 3, 20_000


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
        self._model, self._x, self._p = model, x.double(), num_outputs

    @torch.no_grad()
    def kinds(self) -> list[tuple[Float[Tensor, " dh"], FloatArray]]:
        """Reaches of inputs and latent dimensions with further coordinates of outputs (p, 3), in both ways."""
        model, own = self._model, self._own()
        found = [(self._reach(), own)]
        if is_fused(model.gp.kernel) and model.gp.Z.shape[1] == len(model.units):
            lengthscale = model.gp.kernel.base_kernel.lengthscale.detach().reshape(-1)
            found.append(((model.units * lengthscale).double(), np.zeros_like(own)))
        return found

    def _own(self) -> FloatArray:
        """A direction of each output, as long as what it does by itself is much."""
        outputs = torch.arange(self._p, device=self._x.device)
        share = torch.cat([self._own_share(which) for which in outputs.split(_CHUNK_OUTPUTS)]).cpu().numpy()
        direction = np.random.default_rng(0).standard_normal((self._p, _DIRECTIONS))
        return direction * (np.sqrt(share) / np.linalg.norm(direction, axis=1))[:, None]

    def _reach(self) -> Float[Tensor, " dh"]:
        """Up to where ρ², averaged over some cells, is exp(−1/2)."""
        x, h = self._x, self._model.latents.mean[: self._p].double()
        # The same output at another input, and another output at the same input
        reach = [(part.amax(0) - part.amin(0)).clamp(min=1e-12) for part in (x, h)]
        distance = torch.logspace(np.log10(_SHORTEST), np.log10(_LONGEST), _DISTANCES, dtype=torch.float64).to(x.device)
        at = torch.arange(_TRIED_CELLS, device=x.device)
        base, output = x[at * len(x) // _TRIED_CELLS].unsqueeze(1), (at % self._p).unsqueeze(1)
        a, found = self._points(base, output, 0, h[output]), list[Tensor]()
        for which, length in enumerate(reach):
            along = (torch.diag(length).unsqueeze(1) * distance.view(1, -1, 1)).flatten(0, 1)
            # None, and then every distance along every dimension
            shift = torch.cat([torch.zeros_like(along[:1]), along])
            same = output.expand(-1, len(shift))
            if which == 0:
                b = self._points(base + shift, same, 1, h[same])
            else:
                b = self._points(base.expand(-1, len(shift), -1), (same + 1) % self._p, 0, h[same] + shift)
            power = self._left(a, b).squeeze(1).square().sum(0)
            has_fallen = (power[1:] < np.exp(-0.5) * power[0]).view(len(length), -1)
            first = torch.where(has_fallen.any(1), has_fallen.int().argmax(1), len(distance) - 1)
            found.append(length * distance[first])
        return torch.cat(found)

    def _own_share(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """1 − ρ² between outputs and others with the same latent vectors, over some inputs."""
        h = self._model.latents.mean[outputs].double().unsqueeze(1)
        shared, total = h.new_zeros(len(outputs)), h.new_zeros(len(outputs))
        for i in range(_TRIED_INPUTS):
            x = self._x[i * len(self._x) // _TRIED_INPUTS].expand(len(outputs), 1, -1)
            this, other = (self._points(x, which.unsqueeze(1), 0, h) for which in (outputs, (outputs + 1) % self._p))
            shared += self._left(this, other).flatten()
            total += self._left(this, this).flatten()
        return 1.0 - (shared / total.clamp(min=1e-12)).clamp(0.0, 1.0).square()

    def _points(
        self, x: Float[Tensor, "*g d"], outputs: Int[Tensor, "*g"], row: int, h: Float[Tensor, "*g h"]
    ) -> Points:
        return Points(x, outputs, torch.full_like(outputs, row), h)

    def _left(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        """S between all pairs of cells of each group."""
        (ea, A), (eb, B) = self._explained(a), self._explained(b)
        return cross_covariance(self._model.gp.kernel, ea, eb) - A @ B.mT + self._model.terms.covariance(a, b)

    def _explained(self, a: Points) -> tuple[Float[Tensor, "*g e"], Float[Tensor, "*g m"]]:
        e = self._model.embed(a.x.flatten(0, -2), a.h.flatten(0, -2))
        A = self._model.explained(e)
        return e.view(*a.outputs.shape, -1), A.view(*a.outputs.shape, -1)
