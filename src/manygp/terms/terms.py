"""The terms of a model, added up."""

from collections.abc import Callable, Iterable, Iterator
from typing import Self, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.terms.level import Level
from manygp.terms.own import OwnPart
from manygp.terms.row_effects import RowEffects
from manygp.terms.shared import SharedPart, SharedShocks
from manygp.terms.term import Points, Term
from manygp.terms.trend import Trend

__all__ = ["Terms", "make_term"]

Kind = TypeVar("Kind", bound=Term)


class Terms(nn.ModuleList):
    """A list of terms, whose means, covariances and divergences add up; an empty one adds nothing."""

    def __iter__(self) -> Iterator[Term]:
        return cast("Iterator[Term]", super().__iter__())

    def of(self, kind: type[Kind]) -> list[Kind]:
        """The terms of one kind."""
        return [term for term in self if isinstance(term, kind)]

    def mean(self, points: Points) -> Float[Tensor, "*s"]:
        """What terms add to the mean of every cell."""
        total = points.h.new_zeros(points.h.shape[:-1])
        for term in self:
            total = total + term.mean(points)
        return total

    def slope(self, points: Points) -> Float[Tensor, "*s h"]:
        """Derivatives of `mean` by the latent vectors."""
        total = torch.zeros_like(points.h)
        for term in self:
            total = total + term.slope(points)
        return total

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        """What terms add to the covariance between all pairs of cells of each group."""
        total = a.h.new_zeros(a.has_output_of(b).shape)
        for term in self:
            total = total + term.covariance(a, b)
        return total

    def variance(self, points: Points, has_noise: bool = True) -> Float[Tensor, "*g c"]:
        """What terms add to the variance of every cell, with those that are noise or without."""
        total = points.h.new_zeros(points.outputs.shape)
        for term in self:
            if has_noise or not term.is_noise:
                total = total + term.variance(points)
        return total

    def negative_log_prior(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """−log of the priors of what belongs to each output."""
        total = torch.zeros(outputs.shape, dtype=torch.float64, device=outputs.device)
        for term in self:
            total = total + term.negative_log_prior(outputs)
        return total

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with rows for each output."""
        return (parameter for term in self for parameter in term.row_parameters())

    def constants(self) -> list[nn.Parameter]:
        """Numbers (p, 1) that are added to all cells of an output, and that nothing else tells of a new one."""
        return [parameter for term in self for parameter in term.constants()]

    def without_noise(self) -> Self:
        """The same terms without what is noise at some cells and not at others."""
        return type(self)(term.without_noise() for term in self)

    def joined(self, count: int) -> Self:
        """Copies for so many outputs more, of which nothing is known but their latent vectors."""
        return type(self)(term.joined(count) for term in self)

    def for_outputs(self, count: int) -> Self:
        """Copies for so many other outputs, of which nothing is known but their latent vectors."""
        return type(self)(term.for_outputs(count) for term in self)


def make_term(
    name: str,
    sizes: Iterable[int],
    num_outputs: int,
    num_features: int,
    latent_dim: int,
    sparse: bool = True,
) -> Term:
    """An untrained term by its name and its own sizes.

    Parameters
    ----------
    name, sizes
        What the `name` and `sizes()` of the term are to be.
    num_outputs, num_features, latent_dim
        Sizes of its model.
    sparse
        Whether gradients hold only the outputs that a batch touched.
    """
    p, d, h = num_outputs, num_features, latent_dim
    makers: dict[str, Callable[..., Term]] = {
        Level.name: lambda: Level(p, sparse),
        Trend.name: lambda: Trend(p, h, d),
        OwnPart.name: lambda half_integer: OwnPart(p, h, d, half_integer),
        SharedPart.name: lambda rank, half_integer: SharedPart(p, h, d, rank, half_integer),
        SharedShocks.name: lambda rank: SharedShocks(p, h, rank),
        RowEffects.name: lambda rows, effects: RowEffects(p, d, rows, effects),
    }
    return makers[name](*sizes)
