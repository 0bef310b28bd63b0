"""Zeros beyond those of a count distribution, by the Michaelis-Menten curve.

A count of mean m is replaced by zero with probability ψ = k / (k + m): molecules of rare genes escape detection, those
of common ones do not. With κ = log k, a = η − κ and the kernel K of the count without its constant, which is zero at
y = 0,

    log p(y) = log(1 − ψ) + K             = a + K − log(1 + exp a)            for y > 0
    log p(0) = log(ψ + (1 − ψ) exp K)     = log(1 + exp(a + K)) − log(1 + exp a)

so both are b + [y = 0] log(1 + exp(−b)) − log(1 + exp a) with b = a + K.
"""

import torch
from torch import Tensor, nn

from manygp.likelihoods.counts import CountLikelihood
from manygp.likelihoods.links import bounded_exp, softplus
from manygp.likelihoods.negative_binomial import Overdispersed
from manygp.likelihoods.poisson import POISSON

# Share of the cells that have to be zero beyond what is expected before the data say where k begins, and bisections.
_SHORT, _BISECTIONS = 0.05, 60


class ZeroInflated(CountLikelihood):
    """Counts of a distribution, of which some are lost; a leaf holds k, which all outputs share, as its logarithm κ."""

    log_michaelis_constant: Tensor

    @property
    def michaelis_constant(self) -> Tensor:
        """k, shape (1,)."""
        return self.log_michaelis_constant.exp()

    def extra_zeros(self, m: Tensor) -> Tensor:
        # ψ = k / (k + m)
        k = self.log_michaelis_constant.reshape(()).to(m.dtype).exp()
        return k / (k + m)

    def base_mean(self, mean: Tensor) -> Tensor:
        # (1 − ψ) m = m² / (k + m)
        k = self.log_michaelis_constant.detach().to(mean.dtype).exp()
        return 0.5 * (mean + (mean.square() + 4.0 * k * mean).sqrt())

    def cell_parameters(self, outputs: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        κ = self.pick("log_michaelis_constant", outputs).to(like.dtype)
        return κ, *super().cell_parameters(outputs, like)

    def kernel(self, η: Tensor, y: Tensor, *parameters: Tensor) -> Tensor:
        κ, *others = parameters
        a = η - κ
        b = a + super().kernel(η, y, *others)
        return b + (y == 0.0) * softplus(-b) - softplus(a)

    def kernel_jet(self, η: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        κ, *others = parameters
        kernel, first, second, *slopes = super().kernel_jet(η, y, *others)
        a = η - κ
        b, zero = a + kernel, y == 0.0
        # w = ∂ log p / ∂b is 1 for y > 0 and sigmoid(b) = 1 − v for y = 0
        v, s = zero * torch.sigmoid(-b), torch.sigmoid(a)
        w, slope = 1.0 - v, 1.0 + first
        value = b + zero * softplus(-b) - softplus(a)
        # Small factors first: the square of a large slope may overflow where its weight is zero.
        bend = (w * v * slope) * slope + w * second - s * (1.0 - s)
        return value, w * slope - s, bend, s - w, *(w * other for other in slopes)

    def log_constant(self, y: Tensor, *parameters: Tensor) -> Tensor:
        return super().log_constant(y, *parameters[1:])

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        η, (_, *others) = self.log_mean(f, exposure), self.cell_parameters(outputs, f)
        ψ = self.extra_zeros(bounded_exp(η))
        return torch.where(y < 0.0, 0.0, ψ + (1.0 - ψ) * self.distribution.cdf(η, y, *others))

    @torch.no_grad()
    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        η, (_, *others) = self.log_mean(f, exposure), self.cell_parameters(outputs, f)
        draws = self.distribution.sample(η, generator, *others)
        uniform = torch.rand(draws.shape, dtype=draws.dtype, device=draws.device, generator=generator)
        return draws * (uniform >= self.extra_zeros(bounded_exp(η)))

    @torch.no_grad()
    def start_from(self, y: Tensor, outputs: Tensor, f: Tensor | None = None, exposure: Tensor | None = None) -> None:
        super().start_from(y, outputs, f, exposure)
        if isinstance(self.log_michaelis_constant, nn.Parameter):
            level = self.constant_level(y, outputs, exposure) if f is None else f
            η, (κ, *others) = self.log_mean(level, exposure), self.cell_parameters(outputs, y)
            none = super().kernel(η, torch.zeros_like(y), *others).exp()
            self.log_michaelis_constant.fill_(_start_constant(κ, η, y, none))
            # What lost counts explain is no dispersion.
            super().start_from(y, outputs, f, exposure)


def _start_constant(κ: Tensor, η: Tensor, y: Tensor, none: Tensor) -> Tensor:
    """κ at which as many zeros of y are expected as there are, where the present one leaves many unexplained.

    Learning would take it there in small steps only: a third of counts of a million is lost at k = 4 · 10⁵. `none` is
    the probability of a zero of the distribution's own.
    """

    def short(κ: Tensor) -> Tensor:
        ψ = torch.sigmoid(κ - η)
        return (y == 0.0).double().mean() - (ψ + (1.0 - ψ) * none).mean()

    low, high = κ, η.max() + 10.0
    if short(κ) < _SHORT or high <= low:
        return κ
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if short(middle) > 0.0 else (low, middle)
    return low


class ZeroInflatedPoisson(ZeroInflated):
    """y = 0 with probability ψ = k / (k + m), else y ~ Poisson(m), log m = h(f) + log(scale · exposure).

    Mean (1 − ψ) m, variance (1 − ψ) m (1 + m ψ).

    Parameters
    ----------
    num_outputs
        Number of outputs; all share k.
    michaelis_constant
        Initial k, the mean at which half of the counts are lost; the present one is the attribute of this name.
    learn_michaelis_constant
        Whether k is learned or stays where it is put.
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    distribution = POISSON

    def __init__(
        self,
        num_outputs: int = 1,
        michaelis_constant: float = 0.1,
        learn_michaelis_constant: bool = True,
        link: str = "exp",
        scale: float = 1.0,
    ):
        super().__init__(link, scale)
        self.hold_log("log_michaelis_constant", michaelis_constant, None, learn_michaelis_constant)


class ZeroInflatedNegativeBinomial(ZeroInflated, Overdispersed):
    """y = 0 with probability ψ = k / (k + m), else y ~ NB(m, α), log m = h(f) + log(scale · exposure).

    Mean (1 − ψ) m, variance (1 − ψ) m (1 + m (α + ψ)), P(0) = ψ + (1 − ψ) (1 + α m)^(−1/α); appendix E of the paper,
    which has link="softplus", dispersion=0.01 and michaelis_constant=0.1, the last two not learned.

    Parameters
    ----------
    num_outputs
        Number of outputs; all share k.
    dispersion
        Initial dispersion α; the present one, shape (1,) or (p,), is the attribute of this name.
    per_output
        Whether every output has a dispersion of its own.
    learn_dispersion
        Whether the dispersion is learned or stays where it is put.
    michaelis_constant
        Initial k, the mean at which half of the counts are lost; the present one is the attribute of this name.
    learn_michaelis_constant
        Whether k is learned or stays where it is put.
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    def __init__(
        self,
        num_outputs: int = 1,
        dispersion: float = 0.1,
        per_output: bool = True,
        learn_dispersion: bool = True,
        michaelis_constant: float = 0.1,
        learn_michaelis_constant: bool = True,
        link: str = "exp",
        scale: float = 1.0,
    ):
        super().__init__(link, scale)
        self.hold_log("log_dispersion", dispersion, num_outputs if per_output else None, learn_dispersion)
        self.hold_log("log_michaelis_constant", michaelis_constant, None, learn_michaelis_constant)
