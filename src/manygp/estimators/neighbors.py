"""Groups of cells and their neighbours, which follow a model as it learns what is near."""

import numpy as np
import torch

from manygp.data import GroupPlan, Scaling, Table
from manygp.data.batches import known_noise
from manygp.data.groups import distinct_inputs
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
    """

    def __init__(
        self,
        model: TransformedLatentModel,
        table: Table,
        scaling: Scaling,
        num_neighbors: int,
        device: torch.device,
        rng: np.random.Generator,
    ):
        self.plan = GroupPlan(table, scaling, _BATCH_CELLS, _GROUP_SIZE, num_neighbors, rng)
        self._model, self.device = model, device
        self._x = torch.as_tensor(scaling.scale_x(table.X), device=device)
        self._row, self._output, y = table.cells(self.plan.places)
        self._y = scaling.scale_y(y, self._output)
        self._noise = known_noise(table, scaling, self._row, self._output)

    def arrange(self, loses: bool = False) -> None:
        """Group the cells anew; with `loses`, some stretches as if they were lost."""
        near = Nearness(self._model, self._x, self.plan.table.num_outputs)
        self.plan.arrange(near.cells(self._row, self._output), loses)

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
