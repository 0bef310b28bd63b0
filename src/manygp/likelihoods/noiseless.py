"""The function itself in place of an observation of it."""

import torch
from torch import Tensor

from manygp.likelihoods.likelihood import Likelihood

__all__ = ["Noiseless"]


class Noiseless(Likelihood):
    """y = f, so that predictions are those of the function without observation noise. Not for fitting."""

    is_affine = True

    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return torch.where(f == y, torch.inf, -torch.inf)

    def conditional_moments(self, f: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return f, torch.zeros_like(f)

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return (f <= y).to(f.dtype)

    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        return f

    def predictive_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return torch.distributions.Normal(mean, variance.sqrt()).log_prob(y)

    def predictive_moments(
        self, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return mean, variance

    def predictive_cdf(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return torch.special.ndtr((y - mean) / variance.sqrt())
