"""The interface of all likelihoods, with quadrature wherever a closed form is not given."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from manygp.quadrature import gauss_hermite, gaussian_expectation

__all__ = ["Likelihood"]


class Likelihood(nn.Module):
    """p(y | f) of a single cell, and what follows from it under f ~ N(mean, variance).

    All arguments broadcast against each other; `outputs` holds the output number of every cell. A leaf must define
    `log_prob`, `conditional_moments`, `conditional_cdf` and `sample`; it may replace a quadrature by a closed form.
    """

    num_points = 20
    #: Whether y may be shifted and scaled before modelling (true of real-valued data, false of counts).
    is_affine = False

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor) -> Tensor:
        """log p(y | f)."""

    @abstractmethod
    def conditional_moments(self, f: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """E[y | f] and var[y | f]."""

    @abstractmethod
    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor) -> Tensor:
        """P(Y ≤ y | f)."""

    @abstractmethod
    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """A draw of y given f."""

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor) -> Tensor:
        """E[log p(y | f)], the data term of the bound."""
        return gaussian_expectation(lambda f: self.log_prob(f, y, outputs), mean, variance, self.num_points)

    def predictive_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor) -> Tensor:
        """log E[p(y | f)]."""
        x, w = gauss_hermite(self.num_points, mean)
        shape = (self.num_points,) + (1,) * mean.dim()
        f = mean + variance.sqrt() * x.view(shape)
        return torch.logsumexp(self.log_prob(f, y, outputs) + w.log().view(shape), 0)

    def predictive_moments(self, mean: Tensor, variance: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y, by the laws of total expectation and variance."""

        def conditional(which: int) -> Tensor:
            def power(f: Tensor) -> Tensor:
                first, second = self.conditional_moments(f, outputs)
                return first if which == 1 else second + first.square()

            return gaussian_expectation(power, mean, variance, self.num_points)

        first = conditional(1)
        return first, (conditional(2) - first.square()).clamp(min=0.0)

    def predictive_cdf(self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor) -> Tensor:
        """P(Y ≤ y)."""
        return gaussian_expectation(lambda f: self.conditional_cdf(f, y, outputs), mean, variance, self.num_points)
