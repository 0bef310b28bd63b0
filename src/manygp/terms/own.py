"""What an output does by itself: a function of the inputs that it shares with no other."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.terms.matern import Matern
from manygp.terms.term import Points, RowValues, Term

__all__ = ["OwnPart"]

# Standard deviation of log variances from what latent vectors say.
_SHARE = 1.0


class OwnPart(Term):
    """g_p ~ GP(0, d_p κ), a function of each output's own, with log d_p = a + bᵀ h_p + δ_p and κ a Matern kernel.

    Parameters
    ----------
    num_outputs, latent_dim
        Number of outputs and of latent dimensions.
    num_features, half_integer
        Number of inputs, and twice the smoothness of κ.
    """

    name, is_process = "own part", True

    def __init__(self, num_outputs: int, latent_dim: int, num_features: int, half_integer: int = 3):
        super().__init__()
        self.log_variance = RowValues(num_outputs, latent_dim, 1, _SHARE)
        self.kernel = Matern(num_features, half_integer)

    def sizes(self) -> tuple[int, ...]:
        return (self.kernel.half_integer,)

    @torch.no_grad()
    def start(self, lengthscale: Float[Tensor, " d"], noise: float) -> None:
        self.kernel.set_lengthscale(lengthscale)
        self.log_variance.center.fill_(noise).log_()

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        return torch.where(a.has_output_of(b), self._sd(a) * self._sd(b).mT * self.kernel(a, b), 0.0)

    def variance(self, points: Points) -> Float[Tensor, "*g c"]:
        return self._sd(points).squeeze(-1).square()

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        # d_p κ ≈ d_p φᵀφ
        yield self._sd(points) * self.kernel.features(points, num_features, seed), points.outputs

    def _sd(self, points: Points) -> Float[Tensor, "*g c 1"]:
        return (0.5 * self.log_variance(points.outputs, points.h)).exp()
