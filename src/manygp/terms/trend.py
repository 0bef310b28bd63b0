"""What outputs do along each input: slopes that follow from their latent vectors."""

from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.terms.term import Points, Term, with_rows

__all__ = ["Trend"]


class Trend(Term):
    """xᵀ (W h_p + w + δ_p): functions that are linear in the inputs, with slopes that are linear in h.

    W and w are learned as points; the deviations δ_p of single outputs stay where the start has set them.

    Parameters
    ----------
    num_outputs, latent_dim, num_features
        Number of outputs, latent dimensions and inputs.

    Attributes
    ----------
    slopes, own
        [W, w], shape (d, h + 1), and δ, shape (p, d), for inputs in units of their lengthscales.
    units
        These lengthscales, shape (d,).
    """

    name = "trend"
    own: Tensor
    units: Tensor

    def __init__(self, num_outputs: int, latent_dim: int, num_features: int):
        super().__init__()
        self.slopes = nn.Parameter(torch.zeros(num_features, latent_dim + 1, dtype=torch.float64))
        self.register_buffer("own", torch.zeros(num_outputs, num_features, dtype=torch.float64))
        self.register_buffer("units", torch.ones(num_features, dtype=torch.float64))

    def start(self, lengthscale: Float[Tensor, " d"], noise: float) -> None:
        self.units.copy_(lengthscale)

    @torch.no_grad()
    def set(self, slopes: Float[Tensor, "d k"], own: Float[Tensor, "p d"]) -> None:
        """Set [W, w] or w alone, and δ, for inputs as they come."""
        self.own.copy_(self.units * own)
        self.slopes.zero_()
        self.slopes[:, self.slopes.shape[1] - slopes.shape[1] :] = self.units.unsqueeze(-1) * slopes

    def mean(self, points: Points) -> Float[Tensor, "*s"]:
        x = self._x(points)
        along = x @ self.slopes
        return (along[..., :-1] * points.h).sum(-1) + along[..., -1] + (x * self.own[points.outputs]).sum(-1)

    def slope(self, points: Points) -> Float[Tensor, "*s h"]:
        return (self._x(points) @ self.slopes[:, :-1]).expand(points.h.shape)

    def _x(self, points: Points) -> Float[Tensor, "*g d"]:
        return points.x.double() / self.units

    def _copy(self, count: int, alone: bool) -> Self:
        new = super()._copy(count, alone)
        new.own = with_rows(self.own, count, alone)
        return new
