"""Stationary kernels as finitely many cosines: random Fourier features, from low-discrepancy points."""

from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.kernels import is_fused, smoothness
from manygp.quadrature import unit_frequencies
from manygp.variational import KernelBatch

__all__ = ["Spectrum"]


@dataclass(frozen=True)
class Spectrum:
    """k(a, b) ≈ φ(a)ᵀφ(b) with φ(a) = [α cos(Ω a), α sin(Ω a)]: exact where a = b, and on average over Ω everywhere.

    Parameters
    ----------
    frequencies
        Ω, shape (f, e), or of each kernel of a batch.
    amplitude
        α, shape (f,), or of each kernel of a batch.
    """

    frequencies: Float[Tensor, "*q f e"]
    amplitude: Float[Tensor, "*q f"]

    def __call__(self, points: Float[Tensor, "*s b e"]) -> Float[Tensor, "*s b k"]:
        """φ of every point."""
        angle, α = points @ self.frequencies.mT, self.amplitude.unsqueeze(-2)
        return torch.cat([α * angle.cos(), α * angle.sin()], -1)

    @classmethod
    def of(cls, kernel: Kernel, count: int, seed: int) -> "Spectrum | None":
        """Features of a kernel, half as many frequencies as there are features; None if its spectrum is not known."""
        if not is_fused(kernel):
            return None
        lengthscale = kernel.base_kernel.lengthscale.detach().squeeze(-2)
        directions = unit_frequencies(count // 2, lengthscale.shape[-1], smoothness(kernel), seed)[0]
        σ2 = kernel.outputscale.detach()
        return cls(directions.to(lengthscale) / lengthscale, (2.0 * σ2 / count).sqrt().expand(count // 2))

    @classmethod
    def of_batch(
        cls, kernels: KernelBatch, which: Int[Tensor, " r"] | None, count: int, seed: int
    ) -> "Spectrum | None":
        """Features of some kernels of a batch, of all by default."""
        if not kernels.is_fused:
            return None
        mixture = kernels.mixture
        lengthscale, σ2 = (part.detach() for part in kernels.scales(dict(kernels.kernel.named_parameters())))
        directions, choice = unit_frequencies(count // 2, lengthscale.shape[-1], smoothness(kernels.kernel), seed)
        directions, choice = directions.to(lengthscale), choice.to(lengthscale)
        if mixture is None:
            if which is not None and kernels.size > 1:
                lengthscale, σ2 = lengthscale[which], σ2[which]
            total = σ2
            scaled = directions / lengthscale.unsqueeze(-2)
        else:
            # A frequency of the mixture is one of a kernel that is chosen by its share of the variance.
            share = mixture(which).detach() * σ2
            total = share.sum(-1)
            chosen = torch.searchsorted((share / total.unsqueeze(-1)).cumsum(-1), choice.repeat(len(share), 1))
            scaled = directions / lengthscale[chosen.clamp(max=share.shape[-1] - 1)]
        return cls(scaled, (2.0 * total / count).sqrt().unsqueeze(-1).expand(scaled.shape[:-1]))
