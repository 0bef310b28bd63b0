"""Gaussians over tensors whose covariance is a Kronecker product with one factor for each mode."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.linalg import safe_cholesky, symmetrize


class TensorNormal(nn.Module):
    """q(v) = N(vec v | mean, Σ₁ ⊗ Σ₂ ⊗ …) over a tensor, with prior N(0, I); a matrix normal with two modes.

    Parameters
    ----------
    shape
        Sizes k_m of the modes; Σ_m is (k_m, k_m) and starts at I.
    mean
        Where the mean starts, in any layout; entries of the tensor that it lacks have mean zero.
    natural
        Whether steps of `blend` move it, and gradients do not.
    """

    mean: Tensor

    def __init__(self, shape: Sequence[int], mean: Tensor, natural: bool):
        super().__init__()
        self.shape = tuple(shape)
        names = ["mean", *(f"factor{m}" for m in range(len(shape)))]
        values = [mean.double(), *(torch.eye(size, dtype=torch.float64) for size in shape)]
        for name, value in zip(names, values, strict=True):
            if natural:
                self.register_buffer(name, value.clone())
            else:
                self.register_parameter(name, nn.Parameter(value.clone()))

    @property
    def num_parameters(self) -> int:
        """Entries of the mean and of all covariances."""
        return self.mean.numel() + sum(size**2 for size in self.shape)

    def factor(self, mode: int) -> Float[Tensor, "k k"]:
        """Lower triangular R with Σ_m = R Rᵀ."""
        return getattr(self, f"factor{mode}").tril()

    def covariance(self, mode: int) -> Float[Tensor, "k k"]:
        """Σ_m."""
        R = self.factor(mode)
        return R @ R.T

    def precision(self, mode: int) -> Float[Tensor, "k k"]:
        """Σ_m⁻¹."""
        return torch.cholesky_inverse(self.factor(mode))

    def trace(self, *modes: int) -> Float[Tensor, ""]:
        """Π_m tr Σ_m over some modes, or over all if none is named."""
        chosen = modes or range(len(self.shape))
        return torch.stack([self.factor(m).square().sum() for m in chosen]).prod()

    def spread(self, *modes: int) -> Float[Tensor, " k"]:
        """Diagonal of the Kronecker product of Σ_m over some modes, in the order of their entries."""
        diagonal = torch.ones(1, dtype=self.mean.dtype, device=self.mean.device)
        for m in modes:
            diagonal = (diagonal.unsqueeze(-1) * self.factor(m).square().sum(-1)).flatten()
        return diagonal

    def covariance_kl(self) -> Float[Tensor, ""]:
        """What the covariance adds to KL[q(v) ‖ N(0, I)]; the mean adds half of its squared length."""
        size = math.prod(self.shape)
        # log|Σ₁ ⊗ Σ₂ ⊗ …| = Σ_m (k / k_m) log|Σ_m|, k = Π_m k_m
        logdets = [self.factor(m).diagonal().square().log().sum() / k for m, k in enumerate(self.shape)]
        return 0.5 * (self.trace() - size - size * torch.stack(logdets).sum())

    @torch.no_grad()
    def set_covariance(self, mode: int, covariance: Float[Tensor, "k k"]) -> None:
        """Replace Σ_m."""
        getattr(self, f"factor{mode}").copy_(safe_cholesky(covariance))

    @torch.no_grad()
    def blend(self, mode: int, precision: Float[Tensor, "k k"], rate: float) -> None:
        """Σ_m⁻¹ ← (1 − g) Σ_m⁻¹ + g Λ̂."""
        blended = torch.lerp(self.precision(mode), symmetrize(precision), rate)
        self.set_covariance(mode, torch.cholesky_inverse(safe_cholesky(blended)))
