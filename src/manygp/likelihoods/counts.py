"""What all likelihoods of counts share: link, exposure, quadrature that finds narrow peaks, starting values."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manygp.errors import SettingError
from manygp.likelihoods.likelihood import Likelihood, sum_by_output
from manygp.likelihoods.links import Link, bounded_exp, make_link
from manygp.linalg import with_gradients
from manygp.quadrature import gaussian_expectation, gaussian_nodes, log_gaussian_expectation

_NEWTON_STEPS = 8
_LONGEST_STEP = 4.0
_DISPERSIONS = (1e-3, 10.0)
# Where zeros are added, one where more than this are expected says nothing about f.
_LOST = 100.0


@dataclass(frozen=True)
class CountDistribution:
    """A distribution of counts, as functions of the log mean η, of y, and of other parameters last.

    The log mass is a `kernel` that depends on η and a `constant` that does not, so that gamma functions are computed
    once per cell and not at every node. The `jet` of a kernel is its value, its first and second derivative by η, and
    its derivative by each of the other parameters: training steps and the search for the peak of an integrand take
    them many times. Draws take a generator after η.
    """

    kernel: Callable[..., Tensor]
    jet: Callable[..., tuple[Tensor, ...]]
    constant: Callable[..., Tensor]
    cdf: Callable[..., Tensor]
    sample: Callable[..., Tensor]


class CountLikelihood(Likelihood):
    """y = 0, 1, 2, ... with log mean η = h(f) + log(scale · exposure), before zeros are added where they are.

    A leaf names its `distribution`, or defines what is made of it.

    Parameters
    ----------
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    distribution: CountDistribution
    num_points = 16
    is_discrete = True
    takes_exposure = True
    support = "counts (0, 1, 2, ...) of at most 2⁵³"
    log_scale: Tensor

    def __init__(self, link: str, scale: float):
        super().__init__()
        if not scale > 0.0:
            raise SettingError(f"scale={scale!r} is out of range: use a positive number.")
        self.link: Link = make_link(link)
        self.hold_log("log_scale", scale, None, learned=False)

    # -- what a leaf may define ----------------------------------------------------------------------------------

    def cell_parameters(self, outputs: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        """What kernel and constant need to know of every cell's output, in the dtype of `like`."""
        return ()

    def kernel(self, η: Tensor, y: Tensor, *parameters: Tensor) -> Tensor:
        """log p(y | η) without its constant."""
        return self.distribution.kernel(η, y, *parameters)

    def kernel_jet(self, η: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        """The kernel, its first and second derivative by η, and its derivative by each of the parameters."""
        return self.distribution.jet(η, y, *parameters)

    def log_constant(self, y: Tensor, *parameters: Tensor) -> Tensor:
        """log p(y | η) minus the kernel."""
        return self.distribution.constant(y, *parameters)

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return self.distribution.cdf(self.log_mean(f, exposure), y, *self.cell_parameters(outputs, f))

    @torch.no_grad()
    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        return self.distribution.sample(self.log_mean(f, exposure), generator, *self.cell_parameters(outputs, f))

    def dispersion_of(self, outputs: Tensor, like: Tensor) -> Tensor:
        """α of var[y | m] = m + α m², before zeros are added: none."""
        return like.new_zeros(())

    def extra_zeros(self, m: Tensor) -> Tensor:
        """Probability ψ of a zero that is added to those of a count with mean m: none."""
        return m.new_zeros(())

    def base_mean(self, mean: Tensor) -> Tensor:
        """The m at which (1 − ψ) m is this mean."""
        return mean

    # -- mean of y -----------------------------------------------------------------------------------------------

    def offset(self, exposure: Tensor | None, like: Tensor) -> Tensor:
        """log(scale · exposure)."""
        log_scale = self.log_scale.reshape(()).to(like.dtype)
        return log_scale if exposure is None else exposure.to(like.dtype).log() + log_scale

    def log_mean(self, f: Tensor, exposure: Tensor | None = None) -> Tensor:
        """η = h(f) + log(scale · exposure)."""
        return self.link.log_mean(f) + self.offset(exposure, f)

    # -- data term of the bound ----------------------------------------------------------------------------------

    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        parameters = self.cell_parameters(outputs, f)
        return self.kernel(self.log_mean(f, exposure), y, *parameters) + self.log_constant(y, *parameters)

    def site_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        _, by_mean, by_variance, *_ = self._expected_jet(mean, variance, y, outputs, exposure)
        return by_mean, by_variance

    def sites(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        expected, by_mean, by_variance, *slopes = self._expected_jet(mean, variance, y, outputs, exposure)
        parameters = self.cell_parameters(outputs, mean)
        total = with_gradients(expected.sum(), parameters, slopes)
        return total + self.log_constant(y, *parameters).sum(), by_mean, by_variance

    @torch.no_grad()
    def _expected_jet(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None
    ) -> tuple[Tensor, ...]:
        """E of the kernel and its derivatives by mean, variance and the parameters of every cell."""
        f, w = gaussian_nodes(mean, variance, self.num_points, y.dim())
        parameters = self.cell_parameters(outputs, mean)
        kernel, first, second, *others = self.kernel_jet(self.log_mean(f, exposure), y, *parameters)
        # ∂E[g]/∂μ = E[g'] and ∂E[g]/∂v = ½ E[g'']
        first, second = self.link.chain(f, first, second)
        return tuple(torch.tensordot(w.view(-1), part, 1) for part in (kernel, first, 0.5 * second, *others))

    def log_prob_slopes(
        self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """First and second derivative of log p(y | f) by f."""
        _, first, second, *_ = self.kernel_jet(self.log_mean(f, exposure), y, *self.cell_parameters(outputs, f))
        return self.link.chain(f, first, second)

    # -- predictions ---------------------------------------------------------------------------------------------

    def predictive_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return log_gaussian_expectation(
            lambda f: self.log_prob(f, y, outputs, exposure),
            *(mean, variance, self.num_points, y.dim()),
            around=self._peak(mean, variance, y, outputs, exposure),
        )

    @torch.no_grad()
    def _peak(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mode of p(y | f) N(f | mean, variance) and the variance of a Gaussian as curved as it there.

        A count of y fixes f to about 1/√y, which nodes spread over √variance would miss.
        """

        def slopes(f: Tensor) -> tuple[Tensor, Tensor]:
            first, second = self.log_prob_slopes(f, y, outputs, exposure)
            return first, (-second).clamp(min=0.0)

        # Between the mean and the f at which y is expected, by how much each of the two knows.
        f = self.link.inverse((y + 0.5).log() - self.offset(exposure, mean))
        _, curvature = slopes(f)
        f = (f * curvature + mean / variance) / (curvature + 1.0 / variance)
        for _ in range(_NEWTON_STEPS):
            slope, curvature = slopes(f)
            step = (slope - (f - mean) / variance) / (curvature + 1.0 / variance)
            f = f + step.clamp(-_LONGEST_STEP, _LONGEST_STEP)
        return f, 1.0 / (slopes(f)[1] + 1.0 / variance)

    def conditional_moments(self, f: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> tuple[Tensor, Tensor]:
        m = bounded_exp(self.log_mean(f, exposure))
        ψ, α = self.extra_zeros(m), self.dispersion_of(outputs, f)
        # E = (1 − ψ) m,  var = (1 − ψ) m (1 + m (α + ψ))
        mean = (1.0 - ψ) * m
        return mean, mean * (1.0 + m * (α + ψ))

    def predictive_cdf(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        # At a large y, P(Y ≤ y | f) falls steeply from 1 to 0 between two nodes. So the quadrature gets only what a
        # normal distribution function in f, whose expectation is known, leaves of it.
        center, width2 = self._fall(y.floor().clamp(min=0.0), outputs, exposure, mean)
        closed = torch.special.ndtr((center - mean) / (variance + width2).sqrt())
        rest = gaussian_expectation(
            lambda f: self.conditional_cdf(f, y, outputs, exposure) - torch.special.ndtr((center - f) / width2.sqrt()),
            *(mean, variance, self.num_points, y.dim()),
        )
        return torch.where(y < 0.0, 0.0, (closed + rest).clamp(0.0, 1.0))

    def _fall(self, y: Tensor, outputs: Tensor, exposure: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
        """Where in f, and over which squared width, P(Y ≤ y | f) falls."""
        # The median of a count of mean m is about m − 1/3, and Y ≤ y is Y < y + 1.
        m = y + 2.0 / 3.0
        center = self.link.inverse(m.log() - self.offset(exposure, like))
        slope, _ = self.link.chain(center, torch.ones_like(center), torch.zeros_like(center))
        # var[log y] ≈ 1/m + α, seen through the link
        return center, (1.0 / m + self.dispersion_of(outputs, like)) / slope.square()

    # -- data and starting values --------------------------------------------------------------------------------

    def in_support(self, y: Tensor) -> Tensor:
        # Beyond that, double precision cannot count.
        return (y >= 0.0) & (y == y.floor()) & (y <= 2.0**53)

    def level(self, y: Tensor, outputs: Tensor, num_outputs: int, exposure: Tensor | None = None) -> Tensor:
        exposure = torch.ones_like(y) if exposure is None else exposure.expand_as(y)
        total, exposed = sum_by_output(y, outputs, num_outputs), sum_by_output(exposure, outputs, num_outputs)
        # Half a count at the rate of all cells keeps outputs of nothing but zeros finite.
        pooled = (y.sum() + 0.5) / exposure.sum()
        typical = exposure.mean()
        rate = (total + 0.5) / (exposed + 0.5 / pooled)
        m = self.base_mean(rate * typical)
        return self.link.inverse(m.log() - self.offset(typical, y))

    def guess(self, y: Tensor, outputs: Tensor, level: Tensor, exposure: Tensor | None = None) -> Tensor:
        expected = bounded_exp(self.link.log_mean(level)).index_select(0, outputs)
        exposed = self.offset(exposure, y).exp()
        # The rate after y events, when one event at the output's own rate was known before.
        rate = (y + 1.0) / (exposed + 1.0 / expected)
        m = expected * exposed
        is_lost = (y == 0.0) & (m > _LOST) & (self.extra_zeros(m) > 0.0)
        return self.link.inverse(torch.where(is_lost, expected, rate).log())

    def moment_dispersion(
        self, y: Tensor, outputs: Tensor, size: int, f: Tensor | None, exposure: Tensor | None
    ) -> Tensor:
        """α that explains the squared residuals, for each output (size p) or for all together (size 1)."""
        f = self.constant_level(y, outputs, exposure) if f is None else f
        m = bounded_exp(self.log_mean(f, exposure))
        ψ = self.extra_zeros(m)
        mean = (1.0 - ψ) * m
        # E(y − mean)² = mean (1 + m ψ) + mean m α, solved for α
        excess, weight = (y - mean).square() - mean * (1.0 + m * ψ), mean * m
        pooled = (excess.sum() / weight.sum()).clamp(*_DISPERSIONS)
        if size == 1:
            return pooled.expand(1)
        # As if one more cell of mean 1 had shown the dispersion of all: few small counts say nothing of their own.
        own = sum_by_output(excess, outputs, size) + pooled
        return (own / (sum_by_output(weight, outputs, size) + 1.0)).clamp(*_DISPERSIONS)


def log_factorial(y: Tensor) -> Tensor:
    """log y!."""
    return torch.lgamma(y.double() + 1.0).to(y.dtype)


def poisson_sample(mean: Tensor, generator: torch.Generator) -> Tensor:
    """Poisson draws; torch counts in 64 bits, so means stop well before that."""
    return torch.poisson(mean.clamp(max=1e15), generator=generator)


def gamma_sample(shape: Tensor, generator: torch.Generator) -> Tensor:
    """Gamma draws of rate 1; `torch.distributions` takes no generator."""
    return torch._standard_gamma(shape, generator=generator)
