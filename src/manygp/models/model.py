"""What models that take natural steps have in common: how the bound of a batch is estimated."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from manygp.likelihoods import Likelihood
from manygp.terms import Terms
from manygp.variational import CellBatch, ElboTerms


class Model(nn.Module):
    """A bound on batches, estimated from a view of the batch once q(u) has moved towards what the view shows.

    A leaf says what it makes of a batch, moves q(u), and puts the bound together.
    """

    likelihood: Likelihood

    @abstractmethod
    def _view(self, batch: CellBatch, generator: torch.Generator) -> Any:
        """A batch as the model sees it."""

    @abstractmethod
    def _natural_step(self, batch: CellBatch, view: Any, rate: float) -> None:
        """Move what natural steps move, without a gradient."""

    @abstractmethod
    def _terms(self, batch: CellBatch, view: Any) -> ElboTerms:
        """The terms of the bound at the q(u) that is now."""

    def elbo(self, batch: CellBatch, generator: torch.Generator) -> ElboTerms:
        """An unbiased estimate of the bound from a batch."""
        return self._terms(batch, self._view(batch, generator))

    def natural_elbo(self, batch: CellBatch, generator: torch.Generator, rate: float) -> ElboTerms:
        """Take a natural step, then estimate the bound where it led."""
        view = self._view(batch, generator)
        with torch.no_grad():
            self._natural_step(batch, view, rate)
        return self._terms(batch, view)

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with a row for each output, of which a step touches only a few."""
        yield from self.likelihood.row_parameters()
        for part in self.children():
            if isinstance(part, Terms):
                yield from part.row_parameters()

    def row_units(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Parameters among these whose steps are shares of units, and the units."""
        yield from ()
