"""What outputs share beside the GP, seen by neighbours alone: at one input, or over a few."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.terms.matern import Matern
from manygp.terms.term import Points, RowValues, Term

__all__ = ["SharedPart", "SharedShocks"]

# Loadings to start from where no factors tell, in standard deviations of the noise; and what outputs deviate by from
# loadings that their latent vectors say, as a share of these.
_START, _SHARE = 0.1, 0.05


class _Mixture(Term):
    """g_p = w_pᵀ r with independent functions r of variance 1 and loadings w_p = a + B h_p + δ_p."""

    def __init__(self, num_outputs: int, latent_dim: int, rank: int):
        super().__init__()
        self.loading = RowValues(num_outputs, latent_dim, rank, _SHARE)

    def sizes(self) -> tuple[int, ...]:
        return (self.loading.deviation.shape[1],)

    @torch.no_grad()
    def start(self, lengthscale: Float[Tensor, " d"], noise: float) -> None:
        # At zero all gradients would be zero.
        small = torch.full((1 + len(self.loading.slope),), _START * noise**0.5, dtype=torch.float64)
        self.loading.follow_factors(small)

    def variance(self, points: Points) -> Float[Tensor, "*g c"]:
        return self._loading(points).square().sum(-1)

    def _loading(self, points: Points) -> Float[Tensor, "*g c r"]:
        return self.loading(points.outputs, points.h)


class SharedShocks(_Mixture):
    """ε_np = w_pᵀ r_n with r_n ~ N(0, I): noise that outputs share, with loadings w_p = a + B h_p + δ_p.

    Where some outputs are observed at an input, they tell about the others there.

    Parameters
    ----------
    num_outputs, latent_dim, rank
        Number of outputs, of latent dimensions and of shocks at an input.
    """

    name, is_noise = "shared shocks", True

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        return torch.where(a.has_input_of(b), self._loading(a) @ self._loading(b).mT, 0.0)

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield self._loading(points), points.row


class SharedPart(_Mixture):
    """g_p = w_pᵀ r with rough r ~ GP(0, κ I), κ a Matern kernel, and loadings w_p = a + B h_p + δ_p.

    A linear model of coregionalisation beside the GP, without inducing points of its own.

    Parameters
    ----------
    num_outputs, latent_dim, num_features, rank
        Number of outputs, of latent dimensions, of inputs and of functions.
    half_integer
        Twice the smoothness of κ.
    """

    name, is_process = "shared part", True

    def __init__(self, num_outputs: int, latent_dim: int, num_features: int, rank: int, half_integer: int):
        super().__init__(num_outputs, latent_dim, rank)
        self.kernel = Matern(num_features, half_integer)

    def sizes(self) -> tuple[int, ...]:
        return *super().sizes(), self.kernel.half_integer

    @torch.no_grad()
    def start(self, lengthscale: Float[Tensor, " d"], noise: float) -> None:
        super().start(lengthscale, noise)
        self.kernel.set_lengthscale(lengthscale)

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        return self.kernel(a, b) * (self._loading(a) @ self._loading(b).mT)

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        # κ w_pᵀ w_p' ≈ (w_p ⊗ φ)ᵀ (w_p' ⊗ φ'), for all cells together
        φ = self.kernel.features(points, num_features, seed)
        yield (self._loading(points).unsqueeze(-1) * φ.unsqueeze(-2)).flatten(-2), None
