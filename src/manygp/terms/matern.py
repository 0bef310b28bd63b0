"""A Matern kernel over inputs, for terms that are functions of these."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.kernels import stationary
from manygp.quadrature import unit_frequencies
from manygp.terms.term import Points

__all__ = ["Matern"]


class Matern(nn.Module):
    """κ(x, x') of variance 1, with a lengthscale for each input in scaled units.

    Parameters
    ----------
    num_features
        Number of inputs.
    half_integer
        Twice the smoothness: 1, 3 or 5.
    """

    def __init__(self, num_features: int, half_integer: int):
        super().__init__()
        self.half_integer = half_integer
        self.log_lengthscale = nn.Parameter(torch.zeros(num_features, dtype=torch.float64))

    @torch.no_grad()
    def set_lengthscale(self, lengthscale: Float[Tensor, " d"]) -> None:
        """Set the lengthscales."""
        self.log_lengthscale.copy_(lengthscale.log())

    def features(self, points: Points, count: int, seed: int) -> Float[Tensor, "*g c k"]:
        """φ of cells with κ ≈ φᵀφ: random Fourier features, as many cosines as sines."""
        lengthscale = self.log_lengthscale.exp().detach()
        directions, _ = unit_frequencies(count // 2, len(lengthscale), 0.5 * self.half_integer, seed)
        angle = points.x.double() @ (directions.to(lengthscale) / lengthscale).T
        return torch.cat([angle.cos(), angle.sin()], -1) * (2.0 / count) ** 0.5

    def forward(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        """κ between all pairs of cells of each group."""
        lengthscale = self.log_lengthscale.exp()
        one = torch.ones_like(lengthscale[0])
        return stationary(a.x.double() / lengthscale, b.x.double() / lengthscale, one, 0.5 * self.half_integer)
