"""Stationary kernels as finitely many cosines: random Fourier features, from low-discrepancy points."""

import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.kernels import LatentKernel, is_fused, smoothness
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
        if isinstance(kernel, LatentKernel):
            return LatentSpectrum.of_latent(kernel, count, seed)
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


@dataclass(frozen=True)
class LatentSpectrum(Spectrum):
    """Features of a `LatentKernel`, k = σ² ρ(x − x') φ(h) φ(h') (c + exp(h·h') − 1).

    With g of the plain kernel, g(x, h) − φ(h) g(x, 0) has the covariance σ² ρ φ φ' (exp(h·h') − 1), for φ(h) is the
    correlation of (x, h) with (x, 0); √c φ(h) g'(x, 0) with coefficients of its own adds the rest.

    Parameters
    ----------
    latent_scale
        Lengthscales of h, shape (h,).
    share
        c.
    """

    latent_scale: Float[Tensor, " h"]
    share: Float[Tensor, ""]

    def __call__(self, points: Float[Tensor, "*s b e"]) -> Float[Tensor, "*s b k"]:
        split = points.shape[-1] - len(self.latent_scale)
        h = points[..., split:] / self.latent_scale
        φ = torch.exp(-0.5 * h.square().sum(-1, keepdim=True))
        shared = super().__call__(torch.cat([points[..., :split], torch.zeros_like(h)], -1))
        return torch.cat([super().__call__(points) - φ * shared, self.share.sqrt() * φ * shared], -1)

    @classmethod
    def of_latent(cls, kernel: LatentKernel, count: int, seed: int) -> "LatentSpectrum":
        """Features of a kernel, twice as many as `count`: along h it is an RBF, whatever it is along x."""
        lengthscale, n = kernel.base_kernel.lengthscale.detach().squeeze(-2), kernel.num_latents
        x, _ = unit_frequencies(count // 2, len(lengthscale) - n, smoothness(kernel), seed)
        h, _ = unit_frequencies(count // 2, n, math.inf, seed + 1)
        σ2 = kernel.outputscale.detach()
        frequencies = torch.cat([x, h], -1).to(lengthscale) / lengthscale
        amplitude = (2.0 * σ2 / count).sqrt().expand(count // 2)
        return cls(frequencies, amplitude, lengthscale[-n:], kernel.share.detach())
