"""Groups of cells and their neighbours, which follow a model as it learns what is near."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from manygp.data import GroupPlan, Scaling, Table
from manygp.data.batches import known_noise
from manygp.data.groups import distinct_inputs
from manygp.data.table import FloatArray
from manygp.exchange import ALONE, Exchange
from manygp.models import TransformedLatentModel
from manygp.models.nearness import Nearness
from manygp.models.neighbors import ObservedCells
from manygp.variational import CellBatch

__all__ = ["ARRANGED", "NeighborGroups"]

# Cells of a group and of a batch, after how many epochs groups are made anew, and those that are looked at to see which
# are better.
_GROUP_SIZE, _BATCH_CELLS, ARRANGED, _COMPARED = 32, 900, 5, 90


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
        """Group the cells anew; with `loses`, some stretches as if they were lost.

        Of the ways to tell what is near, the one counts whose groups leave the least open of their cells, given those
        that they are conditioned on: its likelihood is closest to that of the model.
        """
        # All processes look, since that is a step of what a network's bound is computed by.
        kinds = Nearness(self._model, self._x, self.plan.table.num_outputs).kinds()
        left = []
        for kind in kinds:
            self._arrange(*kind, loses=False)
            left.append(self._left_open())
        self._model.reach, own = kinds[int(np.argmin(left))]
        self._arrange(self._model.reach, own, loses)

    def _arrange(self, reach: Tensor, own: FloatArray, loses: bool) -> None:
        """Group the cells by what is near, which one process does for all."""
        d = self._x.shape[1]
        at_input = (self._x.double() / reach[:d]).cpu().numpy()
        at_output = (self._model.latents.mean.detach()[: len(own)].double() / reach[d:]).cpu().numpy()
        z = np.concatenate([at_input[self._row], at_output[self._output], own[self._output]], axis=1)
        # In single precision, so that cells as far as each other stay so, whatever order sums were computed in.
        z = z.astype(np.float32).astype(np.float64)
        self.plan.restore(self.exchange.common(lambda: self._arranged(z, loses)))

    def _arranged(self, z: FloatArray, loses: bool) -> dict[str, Any]:
        self.plan.arrange(z, loses)
        return self.plan.state()

    @torch.no_grad()
    def _left_open(self) -> float:
        """½ log of what some groups leave open of a cell, log|S_G|N| in all."""
        some = np.random.default_rng(0).permutation(len(self.plan.grouping))[:_COMPARED]
        batch = CellBatch.from_arrays(self.plan.batch(some, np.zeros(0, dtype=np.int64)), torch.float64, self.device)
        assert batch.groups is not None
        h = self._model.latents.means(batch.outputs).index_select(0, batch.column)
        return float(self._model.group_evidence(batch, h).logdet / (2.0 * batch.groups.num_cells))

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
