"""The interface of a term, and the cells that it is asked about."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

__all__ = ["Points", "RowValues", "Term", "with_rows"]


@dataclass(frozen=True)
class Points:
    """Cells with the latent vectors of their outputs, in groups or one by one.

    Parameters
    ----------
    x
        Inputs in scaled units.
    outputs, row
        Numbers of the outputs, and of the inputs: cells with the same number have the same input.
    h
        Latent vectors, or several draws of them for every cell.
    """

    x: Float[Tensor, "*g d"]
    outputs: Int[Tensor, "*g"]
    row: Int[Tensor, "*g"]
    h: Float[Tensor, "*s h"]

    def __getitem__(self, at: tuple[slice | Tensor | None, ...]) -> "Points":
        """Some of the cells, or with further axes."""
        return Points(self.x[at], self.outputs[at], self.row[at], self.h[at])

    def has_output_of(self, other: "Points") -> Bool[Tensor, "*g c k"]:
        """Which pairs of cells of a group have the same output."""
        return self.outputs.unsqueeze(-1) == other.outputs.unsqueeze(-2)

    def has_input_of(self, other: "Points") -> Bool[Tensor, "*g c k"]:
        """Which pairs of cells of a group have the same input."""
        return self.row.unsqueeze(-1) == other.row.unsqueeze(-2)


class Term(nn.Module):
    """Interface: a part of a model beside its GP, which adds a mean, a covariance, or both.

    A leaf says what it adds; what it does not say is zero.
    """

    #: What the term is called, in the configuration of a model and in its summary.
    name: ClassVar[str]
    #: Whether the term belongs to single observations, and not to the function behind them.
    is_noise: ClassVar[bool] = False
    #: Whether `rows` are random features, right on average alone.
    is_process: ClassVar[bool] = False

    def sizes(self) -> tuple[int, ...]:
        """Sizes of the term beside those of its model, with which `terms.make_term` makes one like it."""
        return ()

    def start(self, lengthscale: Float[Tensor, " d"], noise: float) -> None:
        """Begin with lengthscales of the inputs and a noise variance that the data tell."""

    # -- what a cell has of it -----------------------------------------------------------------------------------

    def mean(self, points: Points) -> Float[Tensor, "*s"]:
        """What the term adds to the mean of every cell."""
        return points.h.new_zeros(()).expand(points.h.shape[:-1])

    def slope(self, points: Points) -> Float[Tensor, "*s h"]:
        """Derivatives of `mean` by the latent vectors."""
        return torch.zeros_like(points.h)

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        """Covariance of the term between all pairs of cells of each group."""
        return a.h.new_zeros(()).expand(a.has_output_of(b).shape)

    def variance(self, points: Points) -> Float[Tensor, "*g c"]:
        """Variance of the term at every cell."""
        return points.h.new_zeros(()).expand(points.outputs.shape)

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """What is unknown of the term, as a function of cells (b,).

        Yields rows (b, k) in independent standard normal coefficients, and keys (b,): cells of one key share their
        coefficients, all of them where it is None. A process has `num_features` random features; what is finite has as
        many columns as it takes.
        """
        yield from ()

    # -- what belongs to an output -------------------------------------------------------------------------------

    def negative_log_prior(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """−log of the prior of what belongs to each output."""
        total = torch.zeros(outputs.shape, dtype=torch.float64, device=outputs.device)
        for values in self._row_values():
            total = total + values.negative_log_prior(outputs)
        return total

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with rows for each output."""
        for values in self._row_values():
            yield values.deviation

    def constants(self) -> Iterator[nn.Parameter]:
        """Numbers (p, 1) that are added to all cells of an output, and that nothing else tells of a new one."""
        yield from ()

    # -- outputs that were not in the fit ------------------------------------------------------------------------

    def joined(self, count: int) -> Self:
        """A copy for so many outputs more, of which nothing is known but their latent vectors."""
        return self._copy(count, alone=False)

    def for_outputs(self, count: int) -> Self:
        """A copy for so many other outputs, of which nothing is known but their latent vectors."""
        return self._copy(count, alone=True)

    def without_noise(self) -> Self:
        """The term without what is noise at some cells and not at others."""
        return self

    def _copy(self, count: int, alone: bool) -> Self:
        new = copy.deepcopy(self)
        for values in new._row_values():
            values.deviation = nn.Parameter(with_rows(values.deviation.detach(), count, alone))
        return new

    def _row_values(self) -> "Iterator[RowValues]":
        """All numbers of the term that differ between outputs."""
        return (part for part in self.modules() if isinstance(part, RowValues))


def with_rows(rows: Float[Tensor, "p *k"], count: int, alone: bool) -> Float[Tensor, "r *k"]:
    """Zeros for so many outputs, behind the rows of others or alone."""
    fresh = rows.new_zeros(count, *rows.shape[1:])
    return fresh if alone else torch.cat([rows, fresh])


class RowValues(nn.Module):
    """θ_p = s (a + B h_p + τ η_p) with η_p ~ N(0, I): numbers of an output that follow from its latent vector.

    Outputs with many cells have the numbers that these say, others, and those that were not in the fit, have what
    their latent vectors say. Numbers that are tiny have tiny units s: a step of an optimiser is a share of them.

    Parameters
    ----------
    num_outputs, latent_dim, size
        Number of outputs, latent dimensions and numbers.
    share
        τ, how much outputs deviate from what their latent vectors say.
    """

    unit: Tensor

    def __init__(self, num_outputs: int, latent_dim: int, size: int, share: float):
        super().__init__()
        self.share = share
        self.register_buffer("unit", torch.ones(size, dtype=torch.float64))
        self.center = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.slope = nn.Parameter(torch.zeros(latent_dim, size, dtype=torch.float64))
        self.deviation = nn.Parameter(torch.zeros(num_outputs, size, dtype=torch.float64))

    def forward(self, outputs: Int[Tensor, "*g"], h: Float[Tensor, "*g h"]) -> Float[Tensor, "*g k"]:
        """The numbers of some outputs with latent vectors h."""
        return self.unit * (self.center + h @ self.slope + self.share * self._deviations(outputs))

    @torch.no_grad()
    def follow_factors(self, spread: Float[Tensor, " k"]) -> None:
        """Begin as loadings of factors: of what all outputs share first, then of each latent dimension.

        With latent vectors at the loadings of factors, θ_p = (s₀, s₁ h_p1, s₂ h_p2, …).
        """
        self.unit.copy_(spread[: len(self.unit)])
        self.center.zero_()[0] = 1.0
        self.slope.zero_()[:, 1:].fill_diagonal_(1.0)
        self.deviation.zero_()

    def negative_log_prior(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """−log N(η_p | 0, I) without its constant."""
        return 0.5 * self._deviations(outputs).square().sum(-1)

    def _deviations(self, outputs: Int[Tensor, "*g"]) -> Float[Tensor, "*g k"]:
        return nn.functional.embedding(outputs, self.deviation, sparse=True)
