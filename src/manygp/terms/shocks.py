"""What outputs do together at one input and at no other."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.terms.term import Points, RowValues, Term

__all__ = ["SharedShocks"]


class SharedShocks(Term):
    """ε_np = w_pᵀ r_n with r_n ~ N(0, I): noise that outputs share, with loadings w_p = a + B h_p + δ_p.

    Where some outputs are observed at an input, they tell about the others there.

    Parameters
    ----------
    num_outputs, latent_dim, rank
        Number of outputs, of latent dimensions and of shocks at an input.
    scale
        Standard deviation of the deviations δ_p, and of the loadings to start from.
    generator
        Source of the loadings to start from, for at zero all gradients are zero; None is one that is always the same.
    """

    name, is_noise, has_amplitude = "shared shocks", True, True

    def __init__(
        self, num_outputs: int, latent_dim: int, rank: int, scale: float, generator: torch.Generator | None = None
    ):
        super().__init__()
        self.loading = RowValues(num_outputs, latent_dim, rank, spread=scale**2)
        with torch.no_grad():
            self.loading.deviation.normal_(0.0, scale, generator=generator or torch.Generator())

    def sizes(self) -> tuple[int, ...]:
        return (self.loading.deviation.shape[1],)

    @torch.no_grad()
    def start(self, lengthscale: Float[Tensor, " d"], noise: float) -> None:
        self.loading.deviation.mul_(noise**0.5)

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        for part in self.loading.parameters():
            part.mul_(factor**0.5)

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        return torch.where(a.has_input_of(b), self._loading(a) @ self._loading(b).mT, 0.0)

    def variance(self, points: Points) -> Float[Tensor, "*g c"]:
        return self._loading(points).square().sum(-1)

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield self._loading(points), points.row

    def _loading(self, points: Points) -> Float[Tensor, "*g c r"]:
        return self.loading(points.outputs, points.h)
