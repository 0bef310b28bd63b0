"""Inputs of a table, found again when they come back a little rounded."""

import logging

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import cKDTree
from torch import Tensor

logger = logging.getLogger("manygp")

# How far an input may be from one of the table to count as that one, in standard deviations of every column: what
# single precision, or a file with seven digits, leaves of it.
_TOLERANCE = 1e-6


class KnownInputs:
    """Inputs of a table in a tree, O(n log n) to make, O(log n) to find one.

    Parameters
    ----------
    inputs
        The inputs, shape (n, d).
    """

    def __init__(self, inputs: Float[Tensor, "n d"]):
        known = inputs.detach().cpu().double().numpy()
        # Many copies of one input would make a deep tree.
        distinct, self._number = np.unique(known, axis=0, return_index=True)
        spread = distinct.std(0) if len(distinct) else np.ones(known.shape[1])
        # A constant column has no spread, and rounding errors of its own size.
        size = np.abs(distinct).max(0, initial=0.0)
        self._unit = _TOLERANCE * np.where(spread > _TOLERANCE * size, spread, np.maximum(size, 1.0))
        self._tree = cKDTree(distinct / self._unit)

    def find(self, x: Float[Tensor, "b d"]) -> Int[Tensor, " b"]:
        """Numbers of the known inputs that are nearest, -1 where none is as near as rounding leaves it."""
        # Cells of a table come row by row: most repetitions follow each other.
        asked, cell = torch.unique_consecutive(x, dim=0, return_inverse=True)
        points = asked.detach().cpu().double().numpy() / self._unit
        _, place = self._tree.query(points, p=np.inf, distance_upper_bound=1.0)
        is_known = place < len(self._number)
        found = np.full(len(points), -1)
        found[is_known] = self._number[place[is_known]]
        logger.debug("%d of %d inputs are inputs of the table", is_known.sum(), len(points))
        return torch.as_tensor(found, device=x.device)[cell]
