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

__all__ = ["extra_zeros", "inflated_jet", "inflated_kernel", "start_constant", "thin", "unthinned_mean"]

# Share of the cells that have to be zero beyond what is expected before the data say where k begins, and bisections.
_SHORT, _BISECTIONS = 0.05, 60


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


def start_constant(κ: Tensor, η: Tensor, y: Tensor, kernel: Tensor) -> Tensor:
    """κ = log k at which as many zeros of y are expected as there are, where the present one leaves many unexplained.

    Learning would take it there in small steps only: a third of counts of a million is lost at k = 4 · 10⁵. η are log
    means of the counts before any is lost, and exp(kernel) is the probability of a zero of the distribution's own.
    """

    def short(κ: Tensor) -> Tensor:
        ψ = torch.sigmoid(κ - η)
        return (y == 0.0).double().mean() - (ψ + (1.0 - ψ) * kernel.exp()).mean()

    low, high = κ, η.max() + 10.0
    if short(κ) < _SHORT or high <= low:
        return κ
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if short(middle) > 0.0 else (low, middle)
    return low
