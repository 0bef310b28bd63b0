"""Zeros beyond those of a count distribution, by the Michaelis-Menten curve.

A count of mean m is replaced by zero with probability ψ = k / (k + m): molecules of rare genes escape detection, those
of common ones do not. With κ = log k, a = η − κ and the kernel K of the count without its constant, which is zero at
y = 0,

    log p(y) = log(1 − ψ) + K             = a + K − log(1 + exp a)            for y > 0
    log p(0) = log(ψ + (1 − ψ) exp K)     = log(1 + exp(a + K)) − log(1 + exp a)

so both are b + [y = 0] log(1 + exp(−b)) − log(1 + exp a) with b = a + K.
"""

import torch
from torch import Tensor

from manygp.likelihoods.links import softplus

__all__ = ["extra_zeros", "inflated_jet", "inflated_kernel", "thin", "unthinned_mean"]


def extra_zeros(m: Tensor, κ: Tensor) -> Tensor:
    """ψ = k / (k + m)."""
    k = κ.exp()
    return k / (k + m)


def unthinned_mean(mean: Tensor, κ: Tensor) -> Tensor:
    """The m at which (1 − ψ) m = m² / (k + m) is this mean."""
    return 0.5 * (mean + (mean.square() + 4.0 * κ.exp() * mean).sqrt())


def inflated_kernel(η: Tensor, y: Tensor, κ: Tensor, kernel: Tensor) -> Tensor:
    """log p(y) without its constant, from the kernel K of the count."""
    a = η - κ
    b = a + kernel
    return b + (y == 0.0) * softplus(-b) - softplus(a)


def inflated_jet(
    η: Tensor, y: Tensor, κ: Tensor, kernel: Tensor, first: Tensor, second: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    """log p(y) without its constant, its derivatives by η, twice, by κ, and by the parameters of the count.

    From the kernel K of the count and its derivatives, in the same order but for κ.
    """
    a = η - κ
    b, zero = a + kernel, y == 0.0
    # w = ∂ log p / ∂b is 1 for y > 0 and sigmoid(b) = 1 − v for y = 0
    v, s = zero * torch.sigmoid(-b), torch.sigmoid(a)
    w, slope = 1.0 - v, 1.0 + first
    value = b + zero * softplus(-b) - softplus(a)
    # Small factors first: the square of a large slope may overflow where its weight is zero.
    bend = (w * v * slope) * slope + w * second - s * (1.0 - s)
    return value, w * slope - s, bend, s - w, *(w * other for other in others)


def thin(draws: Tensor, m: Tensor, κ: Tensor, generator: torch.Generator) -> Tensor:
    """Replace draws of a count of mean m by zero with probability ψ."""
    uniform = torch.rand(draws.shape, dtype=draws.dtype, device=draws.device, generator=generator)
    return draws * (uniform >= extra_zeros(m, κ))
