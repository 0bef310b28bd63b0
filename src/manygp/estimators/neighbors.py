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
from manygp.models.nearness import Nearness
from manygp.models.neighbors import ObservedCells

__all__ = ["ARRANGED", "NeighborGroups"]

# Cells of a group and of a batch, and after how many epochs groups are made anew.
_GROUP_SIZE, _BATCH_CELLS, ARRANGED = 32, 900, 5


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

    def arrange(self, loses: bool = False) -> None:
        """Group the cells anew, which one process does for all; with `loses`, some stretches as if they were lost."""
        # All look, since that is a step of what a network's bound is computed by.
        near = Nearness(self._model, self._x, self.plan.table.num_outputs)
        # In single precision, so that cells as far as each other stay so, whatever order sums were computed in.
        z = near.cells(self._row, self._output).astype(np.float32).astype(np.float64)
        self.plan.restore(self.exchange.common(lambda: self._arranged(z, loses)))

    def _arranged(self, z: FloatArray, loses: bool) -> dict[str, Any]:
        self.plan.arrange(z, loses)
        return self.plan.state()

    def before_epoch(self, epoch: int) -> None:
        """Group the cells anew before some epochs."""
        if epoch % ARRANGED == 0:
            self.arrange(loses=True)

    def observed(self) -> ObservedCells:
        """The cells that predictions are conditioned on."""
        inputs = distinct_inputs(self.plan.table)
        first = np.unique(inputs, return_index=True)[1]
        device = self._x.device
        row, output, y = (torch.as_tensor(part).to(device) for part in (inputs[self._row], self._output, self._y))
        noise = None if self._noise is None else torch.as_tensor(self._noise).to(device)
        return ObservedCells.of(self._x[first], row, output, y, noise, self.plan.table.num_outputs)
