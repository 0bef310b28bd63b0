"""Likelihoods of GPyTorch, as a user has them."""

import copy
import threading

import gpytorch
import torch
from gpytorch.likelihoods.likelihood import _OneDimensionalLikelihood
from torch import Tensor
from torch.distributions import Distribution, constraints

from manygp.errors import SettingError
from manygp.likelihoods.likelihood import Likelihood, sum_by_output

# Where f is looked for by its mean, and how often the range is halved.
_RANGE, _HALVINGS = 20.0, 50
_GLOBAL_GENERATOR = threading.Lock()


class Given(Likelihood):
    """Any one-dimensional likelihood of GPyTorch: p(y | f) is the distribution that its `forward` returns.

    Everything else follows by quadrature. Its parameters are shared by all outputs. It is copied, and the original
    stays as it is.

    Parameters
    ----------
    likelihood
        For instance `gpytorch.likelihoods.LaplaceLikelihood()`.
    """

    num_points = 32

    def __init__(self, likelihood: gpytorch.likelihoods.Likelihood):
        super().__init__()
        if not isinstance(likelihood, _OneDimensionalLikelihood):
            raise SettingError(
                f"likelihood={type(likelihood).__name__} is not one-dimensional: use one of GPyTorch's likelihoods for "
                "single values, or a name."
            )
        self.likelihood = copy.deepcopy(likelihood).double()
        support = self._support(torch.zeros(1, dtype=torch.float64))
        self.is_discrete, self.is_affine = bool(support.is_discrete), support is constraints.real
        self.support = f"of the support {support}"

    def _distribution(self, f: Tensor) -> Distribution:
        return self.likelihood.forward(f.double())

    def _support(self, f: Tensor) -> constraints.Constraint:
        support = self._distribution(f).support
        assert support is not None
        return support

    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return self._distribution(f).log_prob(y.double()).to(f.dtype)

    def conditional_moments(self, f: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> tuple[Tensor, Tensor]:
        distribution = self._distribution(f)
        return distribution.mean.to(f.dtype), distribution.variance.to(f.dtype)

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        distribution = self._distribution(f)
        if self.is_discrete:
            total = torch.zeros_like(f + y)
            for k in torch.arange(int(y.max()) + 1, dtype=torch.float64, device=f.device):
                total = total + torch.where(y >= k, distribution.log_prob(k).exp(), 0.0).to(f.dtype)
            return total
        try:
            return distribution.cdf(y.double()).to(f.dtype)
        except NotImplementedError:
            raise SettingError(
                f"{type(distribution).__name__} of torch has no distribution function, which quantiles and intervals "
                "need: ask for mean, variance, samples or log_prob."
            ) from None

    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        # Distributions draw from the global generator only, which is one for all threads.
        with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[f.device] if f.is_cuda else []):
            # Seeding all of torch would reach generators of the user's that are not put back.
            own = torch.cuda.default_generators[f.get_device()] if f.is_cuda else torch.default_generator
            own.manual_seed(seed)
            return self._distribution(f).sample().to(f.dtype)

    def in_support(self, y: Tensor) -> Tensor:
        return self._support(torch.zeros_like(y)).check(y)

    def level(self, y: Tensor, outputs: Tensor, num_outputs: int, exposure: Tensor | None = None) -> Tensor:
        count = sum_by_output(torch.ones_like(y), outputs, num_outputs)
        return self._solve((sum_by_output(y, outputs, num_outputs) + y.mean()) / (count + 1.0))

    def guess(self, y: Tensor, outputs: Tensor, level: Tensor, exposure: Tensor | None = None) -> Tensor:
        if self.is_affine:
            return y
        # Halfway to the mean of its output, since a y at the edge of its range has no f.
        expected = self.conditional_moments(level, outputs)[0]
        return self._solve(0.5 * (y + expected.index_select(0, outputs)))

    @torch.no_grad()
    def _solve(self, mean: Tensor) -> Tensor:
        """The f in a wide range at which E[y | f] is nearest to `mean`, taking it for monotonic."""
        if self.is_affine:
            return mean
        lower, upper = torch.full_like(mean, -_RANGE), torch.full_like(mean, _RANGE)
        rises = self._distribution(upper).mean > self._distribution(lower).mean
        for _ in range(_HALVINGS):
            middle = 0.5 * (lower + upper)
            too_low = (self._distribution(middle).mean < mean) == rises
            lower, upper = torch.where(too_low, middle, lower), torch.where(too_low, upper, middle)
        return 0.5 * (lower + upper)
