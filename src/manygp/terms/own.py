"""What an output does by itself: a function of the inputs that it shares with no other."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.kernels import stationary
from manygp.quadrature import unit_frequencies
from manygp.terms.term import Points, RowValues, Term

__all__ = ["OwnPart"]

_SMOOTHNESS = 1.5
# Prior variance of the deviations of log variances from what latent vectors say.
_SPREAD = 1.0


class OwnPart(Term):
    """g_p ~ GP(0, d_p κ), a function of each output's own, with log d_p = a + bᵀ h_p + δ_p and κ a Matern kernel.

    Parameters
    ----------
    num_outputs, latent_dim
        Number of outputs and of latent dimensions.
    lengthscale
        Lengthscales of κ in scaled units, shape (d,).
    variance
        Variance d of all outputs to start from.
    """

    name = "own part"
    is_process = True

    def __init__(self, num_outputs: int, latent_dim: int, lengthscale: Float[Tensor, " d"], variance: float = 0.1):
        super().__init__()
        self.log_variance = RowValues(num_outputs, latent_dim, 1, _SPREAD)
        self.log_lengthscale = nn.Parameter(lengthscale.double().log())
        with torch.no_grad():
            self.log_variance.center.fill_(variance).log_()

    @torch.no_grad()
    def start(self, lengthscale: Float[Tensor, " d"], noise: float) -> None:
        self.log_lengthscale.copy_(lengthscale.log())
        self.log_variance.center.fill_(noise).log_()

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        lengthscale = self.log_lengthscale.exp()
        one = torch.ones_like(lengthscale[0])
        ρ = stationary(a.x.double() / lengthscale, b.x.double() / lengthscale, one, _SMOOTHNESS)
        return torch.where(a.has_output_of(b), self._sd(a) * self._sd(b).mT * ρ, 0.0)

    def variance(self, points: Points) -> Float[Tensor, "*g c"]:
        return self._sd(points).squeeze(-1).square()

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        lengthscale = self.log_lengthscale.exp().detach()
        directions, _ = unit_frequencies(num_features // 2, len(lengthscale), _SMOOTHNESS, seed)
        angle = points.x.double() @ (directions.to(lengthscale) / lengthscale).T
        # d_p κ ≈ d_p φᵀφ with as many cosines as sines
        φ = torch.cat([angle.cos(), angle.sin()], -1) * (2.0 / num_features) ** 0.5
        yield self._sd(points) * φ, points.outputs

    def _sd(self, points: Points) -> Float[Tensor, "*g c 1"]:
        return (0.5 * self.log_variance(points.outputs, points.h)).exp()
