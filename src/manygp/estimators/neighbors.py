"""Groups of cells and their neighbours, which follow a model as it learns what is near."""

from typing import Any

import numpy as np
import torch

from manygp.data import GroupPlan, Scaling, Table
from manygp.data.batches import known_noise
from manygp.data.groups import distinct_inputs
from manygp.data.table import FloatArray
from manygp.exchange import ALONE, Exchange
from manygp.models import TransformedLatentModel
from manygp.models.neighbors import ObservedCells

__all__ = ["NeighborGroups"]

# Cells of a group and of a batch, and the epochs before which groups are made anew.
_GROUP_SIZE, _BATCH_CELLS, _ARRANGED = 32, 2700, (0, 3, 10, 30, 100)
# Cells that are embedded at a time.
_CHUNK_CELLS = 100_000


class NeighborGroups:
    """A plan of batches of groups, arranged by what a model takes for near.

    Parameters
    ----------
    model
        The model, which is trained meanwhile.
    table, scaling
        The observations and their scaling.
    num_neighbors
        Cells that a group is conditioned on.
    device
        Where the model is.
    rng
        Source of randomness.
    exchange
        Other processes, which have groups of their own.
    """

    def __init__(
        self,
        model: TransformedLatentModel,
        table: Table,
        scaling: Scaling,
        num_neighbors: int,
        device: torch.device,
        rng: np.random.Generator,
        exchange: Exchange = ALONE,
    ):
        dealt = exchange.own_shards, exchange.shards, exchange.size
        self.plan = GroupPlan(table, scaling, _BATCH_CELLS, _GROUP_SIZE, num_neighbors, rng, *dealt)
        self._model, self.device, self.exchange = model, device, exchange
        self._x = torch.as_tensor(scaling.scale_x(table.X), device=device)
        self._row, self._output, y = table.cells(self.plan.places)
        self._y = scaling.scale_y(y, self._output)
        self._noise = known_noise(table, scaling, self._row, self._output)

    def arrange(self) -> None:
        """Group the cells anew, which one process does for all."""
        # All look, since that is a step of what a network's bound is computed by.
        z = self._coordinates()
        self.plan.restore(self.exchange.common(lambda: self._arranged(z)))

    def _arranged(self, z: FloatArray) -> dict[str, Any]:
        self.plan.arrange(z)
        return self.plan.state()

    def before_epoch(self, epoch: int) -> None:
        """Group the cells anew before some epochs."""
        if epoch in _ARRANGED:
            self.arrange()

    def observed(self) -> ObservedCells:
        """The cells that predictions are conditioned on."""
        inputs = distinct_inputs(self.plan.table)
        first = np.unique(inputs, return_index=True)[1]
        device = self._x.device
        row, output, y = (torch.as_tensor(part).to(device) for part in (inputs[self._row], self._output, self._y))
        noise = None if self._noise is None else torch.as_tensor(self._noise).to(device)
        return ObservedCells.of(self._x[first], row, output, y, noise, self.plan.table.num_outputs)

    def _coordinates(self) -> FloatArray:
        parts = []
        for at in np.array_split(np.arange(len(self._row)), 1 + len(self._row) // _CHUNK_CELLS):
            output = torch.as_tensor(self._output[at], device=self._x.device)
            # In single precision, so that cells as far as each other stay so, whatever order sums were computed in.
            parts.append(self._model.coordinates_of(self._x[self._row[at]], output).float().double().cpu().numpy())
        return np.concatenate(parts)
