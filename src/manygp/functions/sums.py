"""Means and variances of weighted sums of cells, group by group, whatever the number of cells."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float
from scipy import sparse
from torch import Tensor

from manygp.data.table import IntArray
from manygp.functions.view import View
from manygp.linalg import sparse_matrix

__all__ = ["moments_of_sums"]

# Numbers of pairs of cells up to which variances are exact; beyond, random features stand for what inducing
# points leave open. Cells whose pairs are made together.
_MAX_PAIRS, _PAIR_CELLS = 50_000_000, 1_024
# Draws that stand for variances where these are no sums of squares.
_NUM_DRAWS = 512


def moments_of_sums(
    view_of: Callable[[IntArray], View], W: sparse.csr_array, order: IntArray, chunk_cells: int, pair_weight: int
) -> tuple[Float[Tensor, "s g"], Float[Tensor, "s g"]]:
    """Means and variances of W f in every component of the mixture.

    Parameters
    ----------
    view_of
        The view of some cells, by number.
    W
        Weights, one row for each group, shape (g, c).
    order
        A rank for every cell, by which the cells of a group are visited: those that have much in common should follow
        each other.
    chunk_cells
        Cells that are viewed together.
    pair_weight
        Numbers that a pair of cells takes.
    """
    W = W.tocsr()
    W.eliminate_zeros()
    lots = list(_lots(W, min(chunk_cells, _PAIR_CELLS)))
    sizes = np.array([len(np.unique(W[lot].indices)) for lot in lots], dtype=float)
    is_exact = bool(sizes.max(initial=0.0) <= chunk_cells and (sizes**2).sum() * pair_weight <= _MAX_PAIRS)
    means, variances = [], []
    for lot in lots if is_exact else _lots(W, chunk_cells):
        mean, variance = _lot(view_of, W[lot], order, chunk_cells, is_exact)
        means.append(mean)
        variances.append(variance)
    return torch.cat(means, -1), torch.cat(variances, -1)


def _lots(W: sparse.csr_array, most: int) -> Iterator[slice]:
    """Groups that follow each other, with so many cells together at most, or a single group with more."""
    start, counts = 0, np.diff(W.indptr)
    while start < len(counts):
        stop, total = start + 1, counts[start]
        while stop < len(counts) and total + counts[stop] <= most:
            total, stop = total + counts[stop], stop + 1
        yield slice(start, stop)
        start = stop


def _lot(
    view_of: Callable[[IntArray], View], W: sparse.csr_array, order: IntArray, most: int, is_exact: bool
) -> tuple[Tensor, Tensor]:
    cells = np.unique(W.indices)
    cells = cells[np.argsort(order[cells], kind="stable")]
    if not len(cells):
        view = view_of(np.zeros(1, dtype=np.int64))
        nothing = view.mean.new_zeros(len(view.mean), W.shape[0])
        return nothing, nothing
    if is_exact:
        view = view_of(cells)
        weights = _tensor(W[:, cells], view.mean)
        return _summed(view.mean, weights), view.variance_of_sums(weights)
    sums, is_linear = _RowSums(), True
    total: Tensor | float = 0.0
    drawn: Tensor | float = 0.0
    for part in np.split(cells, np.arange(most, len(cells), most)):
        view = view_of(part)
        weights = _tensor(W[:, part], view.mean)
        total = total + _summed(view.mean, weights)
        is_linear = view.is_linear
        if is_linear:
            sums.add(view, weights)
        else:
            drawn = drawn + _summed(view.draw(torch.arange(_NUM_DRAWS), 0), weights)
    assert isinstance(total, Tensor)
    if is_linear:
        return total, sums.squares(total)
    assert isinstance(drawn, Tensor)
    return total, drawn.var(0, keepdim=True)


class _RowSums:
    """Sums of rows by block, group and key, over parts of the cells of some groups."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def add(self, view: View, W: Tensor) -> None:
        """Take in some cells."""
        for stream, sums in view.row_sums(W):
            lots = self._parts.setdefault(stream, [])
            lots.append(sums)
            if len(lots) > 8:
                lots[:] = [_merged(lots)]

    def squares(self, like: Float[Tensor, "s g"]) -> Float[Tensor, "s g"]:
        """Squared lengths, summed over blocks and keys."""
        total = torch.zeros_like(like)
        for lots in self._parts.values():
            pairs, sums = _merged(lots)
            squares = sums.square().sum(-1).expand(len(total), -1)
            total = total.index_add(1, pairs[0], squares)
        return total


def _merged(lots: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    pairs, place = torch.cat([pairs for pairs, _ in lots], 1).unique(dim=1, return_inverse=True)
    sums = torch.cat([sums for _, sums in lots], 1)
    merged = sums.new_zeros(sums.shape[0], pairs.shape[1], sums.shape[2])
    return pairs, merged.index_add(1, place, sums)


def _summed(values: Float[Tensor, "s b"], W: Tensor) -> Float[Tensor, "s g"]:
    return torch.sparse.mm(W, values.T).T


def _tensor(W: sparse.csr_array, like: Tensor) -> Tensor:
    coo = W.tocoo()
    row, column = (torch.as_tensor(part.astype(np.int64)) for part in (coo.row, coo.col))
    return sparse_matrix(row, column, torch.as_tensor(coo.data), W.shape).to(like).coalesce()
