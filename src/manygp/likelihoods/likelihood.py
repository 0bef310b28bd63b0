"""The interface of all likelihoods, with quadrature wherever a closed form is not given."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from manygp.errors import DataError
from manygp.quadrature import gaussian_expectation, gaussian_nodes, log_gaussian_expectation


class Likelihood(nn.Module):
    """p(y | f) of a single cell, and what follows from it under f ~ N(mean, variance).

    All arguments broadcast against each other; `outputs` holds the output number of every cell, `exposure` what the
    mean of a count is multiplied by, or the variance of the noise that a Gaussian value has beside that of its output.
    A leaf must define `log_prob`, `conditional_moments`, `conditional_cdf` and `sample`; it may replace a quadrature by
    a closed form. Positive numbers are kept by their logarithms, in (1,) for all outputs together or in (p,) for each
    its own; `rows` names the tensors of the second kind.
    """

    #: Nodes of the quadrature.
    num_points = 20
    #: Whether y may be shifted and scaled before modelling (true of real-valued data, false of counts).
    is_affine = False
    #: Whether y takes whole numbers only, so that `log_prob` is a log mass.
    is_discrete = False
    #: Whether `exposure` has a meaning; where it has none, whoever calls must not pass it.
    takes_exposure = False
    #: What y may be, for messages.
    support = "real numbers"
    #: Whether gradients of parameters with one entry per output hold only the entries that a batch touched.
    sparse_rows = False
    #: Names of the tensors with one entry per output, be there one output or many.
    rows: tuple[str, ...] = ()

    # -- what a leaf defines -------------------------------------------------------------------------------------

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """log p(y | f)."""

    @abstractmethod
    def conditional_moments(self, f: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """E[y | f] and var[y | f]."""

    @abstractmethod
    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """P(Y ≤ y | f)."""

    @abstractmethod
    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        """A draw of y given f."""

    # -- data term of the bound ----------------------------------------------------------------------------------

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        """E[log p(y | f)], the data term of the bound."""
        return gaussian_expectation(
            lambda f: self.log_prob(f, y, outputs, exposure), mean, variance, self.num_points, y.dim()
        )

    def monte_carlo_expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        outputs: Tensor,
        num_samples: int,
        generator: torch.Generator,
        exposure: Tensor | None = None,
    ) -> Tensor:
        """E[log p(y | f)] by an average over reparametrised draws of f, unbiased and differentiable."""
        shape = (num_samples, *torch.broadcast_shapes(mean.shape, variance.shape, y.shape))
        noise = torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=generator)
        return self.log_prob(mean + variance.sqrt() * noise, y, outputs, exposure).mean(0)

    def site_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """∂E/∂mean and ∂E/∂variance of E = E[log p(y | f)], of every cell, without a graph."""
        with torch.enable_grad():
            mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
            total = self.expected_log_prob(mean, variance, y, outputs, exposure).sum()
            by_mean, by_variance = torch.autograd.grad(total, (mean, variance))
        return by_mean, by_variance

    def sites(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Σ E[log p(y | f)], with gradients for the likelihood's own parameters alone, and the `site_derivatives`.

        All that a training step needs, in one go.
        """
        with torch.enable_grad():
            mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
            total = self.expected_log_prob(mean, variance, y, outputs, exposure).sum()
            by_mean, by_variance = torch.autograd.grad(total, (mean, variance), retain_graph=True)
        return total, by_mean, by_variance

    # -- predictions ---------------------------------------------------------------------------------------------

    def predictive_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        """log E[p(y | f)]."""
        return log_gaussian_expectation(
            lambda f: self.log_prob(f, y, outputs, exposure), mean, variance, self.num_points, y.dim()
        )

    def plug_in_log_prob(self, mean: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """log p(y | f = mean), which takes the mean of f for f itself; the paper's NLL of counts is made of it."""
        return self.log_prob(mean, y, outputs, exposure)

    def predictive_moments(
        self, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of y, by the laws of total expectation and variance."""
        f, w = gaussian_nodes(mean, variance, self.num_points, 0 if exposure is None else exposure.dim())
        conditional_mean, conditional_variance = self.conditional_moments(f, outputs, exposure)
        first = (w * conditional_mean).sum(0)
        # var y = E[var[y | f]] + var[E[y | f]]
        return first, (w * (conditional_variance + (conditional_mean - first).square())).sum(0)

    def predictive_cdf(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        """P(Y ≤ y)."""
        return gaussian_expectation(
            lambda f: self.conditional_cdf(f, y, outputs, exposure), mean, variance, self.num_points, y.dim()
        )

    def zero_probability(
        self, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        """P(Y = 0); zero unless y is discrete."""
        if not self.is_discrete:
            return torch.zeros_like(mean + variance)
        return self.predictive_log_prob(mean, variance, torch.zeros_like(mean), outputs, exposure).exp()

    # -- data and starting values --------------------------------------------------------------------------------

    def check(self, y: np.ndarray | Tensor) -> None:
        """Refuse values that y cannot have; NaN stands for no value.

        Raises
        ------
        DataError
            If one is outside the support.
        """
        values = torch.as_tensor(y).double()
        wrong = values[~self.in_support(values) & ~values.isnan()]
        if len(wrong):
            raise DataError(
                f"Y holds {float(wrong[0]):g}, but {type(self).__name__} observations are {self.support}: correct the "
                "values or choose another likelihood."
            )

    def in_support(self, y: Tensor) -> Tensor:
        """Which values y can have."""
        return y.isfinite()

    def level(self, y: Tensor, outputs: Tensor, num_outputs: int, exposure: Tensor | None = None) -> Tensor:
        """The constant f that suits each output's cells, (p,); that of all cells for outputs without any."""
        total, count = sum_by_output(y, outputs, num_outputs), sum_by_output(torch.ones_like(y), outputs, num_outputs)
        return torch.where(count > 0, total / count.clamp(min=1.0), y.mean())

    def guess(self, y: Tensor, outputs: Tensor, level: Tensor, exposure: Tensor | None = None) -> Tensor:
        """A value of f for every cell that suits its y: an observation of f for methods that need one.

        `level` is what the method of that name returned. Where a single y says little about f, as a count of zero
        does, the guess stays near the level of its output.
        """
        return y

    def constant_level(self, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        """The level of every cell's output."""
        return self.level(y, outputs, int(outputs.max()) + 1, exposure).index_select(0, outputs)

    def start_from(self, y: Tensor, outputs: Tensor, f: Tensor | None = None, exposure: Tensor | None = None) -> None:
        """Set the parameters to where the moments of the data put them, given f, or else f constant in each output.

        Here: nothing to set.
        """

    def negative_log_prior(self, outputs: Tensor) -> Tensor:
        """−log of the prior of the parameters that are each output's own, of every output; here there is none."""
        return torch.zeros(outputs.shape, dtype=torch.float64, device=outputs.device)

    # -- parameters ----------------------------------------------------------------------------------------------

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with one entry per output, of which a batch touches few."""
        return (getattr(self, name) for name in self.row_names())

    def row_names(self) -> list[str]:
        """Names of the parameters with one entry per output; constants are none."""
        return [name for name in self.rows if isinstance(getattr(self, name), nn.Parameter)]

    def for_outputs(self, num_outputs: int) -> "Likelihood":
        """A copy for other outputs, each with the average of what belongs to an output here."""
        return self._with_rows(lambda row, _: row.detach().mean().expand(num_outputs).clone(), self)

    def joined(self, other: "Likelihood") -> "Likelihood":
        """A copy for the outputs of both, those of the other likelihood last."""
        return self._with_rows(lambda row, more: torch.cat([row.detach(), more.detach()]), other)

    def _with_rows(self, change: Callable[[Tensor, Tensor], Tensor], other: "Likelihood") -> "Likelihood":
        """A copy with `change` applied to every tensor of one entry per output here and its namesake there."""
        held = copy.deepcopy(self)
        for name in self.rows:
            row = getattr(self, name)
            values = change(row, getattr(other, name))
            is_learned = isinstance(row, nn.Parameter)
            setattr(held, name, nn.Parameter(values, row.requires_grad) if is_learned else values)
        return held

    def hold_log(self, name: str, value: float, num_outputs: int | None, learned: bool = True) -> None:
        """Keep log `value` as a parameter of this name, or as a constant if it is not to be learned.

        One for each of `num_outputs` outputs, or for None one that all share.
        """
        log = torch.full((1 if num_outputs is None else num_outputs,), value, dtype=torch.float64).log()
        if num_outputs is not None:
            self.rows = (*self.rows, name)
        if learned:
            self.register_parameter(name, nn.Parameter(log))
        else:
            self.register_buffer(name, log)

    def pick(self, name: str, outputs: Tensor) -> Tensor:
        """A parameter's entry for every cell, or the one that all outputs share, without dimensions."""
        parameter: Tensor = getattr(self, name)
        if name not in self.rows:
            return parameter.reshape(())
        # The backward of plain indexing is slower, and has no sparse form.
        flat = torch.gather(parameter, 0, outputs.reshape(-1), sparse_grad=self.sparse_rows)
        return flat.view(outputs.shape)


def mean_by_output(values: Tensor, outputs: Tensor, size: int) -> Tensor:
    """Means of the cells of every output, (p,), each drawn to the mean of all by one cell; of all, (1,), for size 1."""
    pooled = values.mean()
    if size == 1:
        return pooled.expand(1)
    count = sum_by_output(torch.ones_like(values), outputs, size)
    return (sum_by_output(values, outputs, size) + pooled) / (count + 1.0)


def sum_by_output(values: Tensor, outputs: Tensor, num_outputs: int) -> Tensor:
    """Sums of the cells of every output, (p,)."""
    return values.new_zeros(num_outputs).index_add_(0, outputs, values)
