"""What outputs share and inducing points are too few to see: rough functions that outputs mix."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.terms.matern import Matern
from manygp.terms.term import Points, RowValues, Term

__all__ = ["SharedPart"]


class SharedPart(Term):
    """g_p = w_pᵀ r with rough r ~ GP(0, κ I), κ a Matern kernel, and loadings w_p = a + B h_p + δ_p.

    A linear model of coregionalisation beside the GP, seen by neighbours alone, without inducing points of its own.

    Parameters
    ----------
    num_outputs, latent_dim, num_features, rank
        Number of outputs, of latent dimensions, of inputs and of functions.
    half_integer
        Twice the smoothness of κ.
    scale
        Standard deviation of the deviations δ_p.
    """

    name, has_amplitude, is_process = "shared part", True, True

    def __init__(
        self, num_outputs: int, latent_dim: int, num_features: int, rank: int, half_integer: int, scale: float
    ):
        super().__init__()
        self.loading = RowValues(num_outputs, latent_dim, rank, spread=scale**2)
        self.kernel = Matern(num_features, half_integer)

    def sizes(self) -> tuple[int, ...]:
        return self.loading.deviation.shape[1], self.kernel.half_integer

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        for part in self.loading.parameters():
            part.mul_(factor**0.5)

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        return self.kernel(a, b) * (self._loading(a) @ self._loading(b).mT)

    def variance(self, points: Points) -> Float[Tensor, "*g c"]:
        return self._loading(points).square().sum(-1)

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        # κ w_pᵀ w_p' ≈ (w_p ⊗ φ)ᵀ (w_p' ⊗ φ'), for all cells together
        φ = self.kernel.features(points, num_features, seed)
        yield (self._loading(points).unsqueeze(-1) * φ.unsqueeze(-2)).flatten(-2), torch.zeros_like(points.outputs)

    def _loading(self, points: Points) -> Float[Tensor, "*g c r"]:
        return self.loading(points.outputs, points.h)
