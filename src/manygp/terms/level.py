"""What an output is on average, where observations cannot be centred."""

from collections.abc import Iterator
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.terms.term import Points, Term, with_rows

__all__ = ["Level"]


class Level(Term):
    """c_p ~ N(c⁰_p, 1), a constant of each output, learned as a point.

    Parameters
    ----------
    num_outputs
        Number of outputs.
    sparse
        Whether gradients hold only the outputs that a batch touched.

    Attributes
    ----------
    value
        c, shape (p, 1).
    prior
        c⁰, shape (p, 1).
    unknown
        Variances of levels that were never learned, zero for others, shape (p,).
    """

    name = "level"
    prior: Tensor
    unknown: Tensor

    def __init__(self, num_outputs: int, sparse: bool = False):
        super().__init__()
        self.sparse = sparse
        self.value = nn.Parameter(torch.zeros(num_outputs, 1, dtype=torch.float64))
        self.register_buffer("prior", torch.zeros(num_outputs, 1, dtype=torch.float64))
        self.register_buffer("unknown", torch.zeros(num_outputs, dtype=torch.float64))

    @classmethod
    def known(cls, level: Float[Tensor, " p"], variance: Float[Tensor, " p"]) -> Self:
        """Levels that were not learned, but follow from what is usual among outputs."""
        term = cls(len(level)).to(level.device)
        term.set(level)
        term.unknown.copy_(variance)
        return term

    @torch.no_grad()
    def set(self, level: Float[Tensor, " p"]) -> None:
        """Set the levels and the means of their prior."""
        self.value.copy_(level.unsqueeze(-1))
        self.prior.copy_(level.unsqueeze(-1))

    def mean(self, points: Points) -> Float[Tensor, "*g"]:
        return self._at(points.outputs)

    def variance(self, points: Points) -> Float[Tensor, "*g"]:
        return self.unknown[points.outputs]

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        return torch.where(a.has_output_of(b), self.unknown[a.outputs].unsqueeze(-1), 0.0)

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.unknown[points.outputs].sqrt().unsqueeze(-1), points.outputs

    def negative_log_prior(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        # −log N(c_p | c⁰_p, 1) without its constant
        return 0.5 * (self._at(outputs) - self.prior[outputs, 0]).square()

    def row_parameters(self) -> Iterator[nn.Parameter]:
        yield self.value

    def constants(self) -> Iterator[nn.Parameter]:
        yield self.value

    def _copy(self, count: int, alone: bool) -> Self:
        new = super()._copy(count, alone)
        new.value = nn.Parameter(with_rows(self.value.detach(), count, alone))
        new.prior, new.unknown = with_rows(self.prior, count, alone), with_rows(self.unknown, count, alone)
        return new

    def _at(self, outputs: Int[Tensor, "*g"]) -> Float[Tensor, "*g"]:
        return nn.functional.embedding(outputs, self.value, sparse=self.sparse).squeeze(-1)
