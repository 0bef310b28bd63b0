"""The interface of a term, and the cells that it is asked about."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

__all__ = ["Points", "RowValues", "Term"]


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
        Latent vectors.
    """

    x: Float[Tensor, "*g d"]
    outputs: Int[Tensor, "*g"]
    row: Int[Tensor, "*g"]
    h: Float[Tensor, "*g h"]

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
    """Interface: a Gaussian part of the observations beside the GP."""

    #: Whether the term belongs to single observations, and not to the function behind them.
    is_noise = False

    def start(self, lengthscale: Float[Tensor, " d"], noise: float) -> None:
        """Begin with lengthscales of the inputs and a noise variance that the data tell."""
        raise NotImplementedError

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        """Covariance of the term between all pairs of cells of each group."""
        raise NotImplementedError

    def variance(self, points: Points) -> Float[Tensor, "*g c"]:
        """Variance of the term at every cell."""
        raise NotImplementedError

    def rows(self, points: Points, num_features: int, seed: int) -> tuple[Float[Tensor, "*g c k"], Int[Tensor, "*g c"]]:
        """The term as a function: rows in independent coefficients, which cells of one key share, and the keys.

        A process has about as many random features; what is finite has as many columns as it takes.
        """
        raise NotImplementedError

    def negative_log_prior(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """−log of the prior of what belongs to each output."""
        return torch.stack([values.negative_log_prior(outputs) for values in self._row_values()]).sum(0)

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with rows for each output."""
        for values in self._row_values():
            yield values.deviation

    def joined(self, count: int) -> Self:
        """A copy for so many outputs more, of which nothing is known but their latent vectors."""
        return self._copy(count, alone=False)

    def for_outputs(self, count: int) -> Self:
        """A copy for so many other outputs, of which nothing is known but their latent vectors."""
        return self._copy(count, alone=True)

    def _copy(self, count: int, alone: bool) -> Self:
        new = copy.deepcopy(self)
        for values in new._row_values():
            rows = values.deviation.detach()
            fresh = rows.new_zeros(count, rows.shape[1])
            values.deviation = nn.Parameter(fresh if alone else torch.cat([rows, fresh]))
        return new

    def _row_values(self) -> "Iterator[RowValues]":
        """All numbers of the term that differ between outputs."""
        return (part for part in self.modules() if isinstance(part, RowValues))


class RowValues(nn.Module):
    """θ_p = a + B h_p + δ_p with δ_p ~ N(0, τ² I): numbers of an output that follow from its latent vector.

    Outputs with many cells have the numbers that these say, others, and those that were not in the fit, have what
    their latent vectors say.

    Parameters
    ----------
    num_outputs, latent_dim, size
        Number of outputs, latent dimensions and numbers.
    spread
        Prior variance τ² of the deviations.
    """

    def __init__(self, num_outputs: int, latent_dim: int, size: int, spread: float):
        super().__init__()
        self.spread = spread
        self.center = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.slope = nn.Parameter(torch.zeros(latent_dim, size, dtype=torch.float64))
        self.deviation = nn.Parameter(torch.zeros(num_outputs, size, dtype=torch.float64))

    def forward(self, outputs: Int[Tensor, "*g"], h: Float[Tensor, "*g h"]) -> Float[Tensor, "*g k"]:
        """The numbers of some outputs with latent vectors h."""
        return self.center + h @ self.slope + self._deviations(outputs)

    def negative_log_prior(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """−log N(δ_p | 0, τ² I) without its constant."""
        return 0.5 * self._deviations(outputs).square().sum(-1) / self.spread

    def _deviations(self, outputs: Int[Tensor, "*g"]) -> Float[Tensor, "*g k"]:
        return nn.functional.embedding(outputs, self.deviation, sparse=True)
