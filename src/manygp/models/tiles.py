"""Predictions from neighbours of many cells at once, with what cells close together share computed once.

Every cell keeps neighbours of its own, so that the numbers are those of `NeighborPredictor.one_by_one`. What costs time
there is the covariance S_NN of the neighbours of each cell. Cells close together have most neighbours in common, so S
is computed among all neighbours of a tile of cells, and each cell takes its own part of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manygp.data.groups import neighborly
from manygp.data.table import IntArray
from manygp.kernels import CovarianceAmong, kernel_diagonal
from manygp.linalg import safe_cholesky
from manygp.terms import OwnPart, Points, SharedPart, SharedShocks, Term

if TYPE_CHECKING:
    from manygp.models.neighbors import NeighborPredictor

__all__ = ["Conditioned", "TiledPredictor"]

# Inputs and outputs of a block, whose neighbours are embedded together; inputs and outputs of a tile, whose neighbours
# have their covariances computed together.
_BLOCK, _TILE = (64, 256), (4, 16)
# Terms whose covariance is a function of two inputs times a function of two outputs.
_SEPARABLE = (OwnPart, SharedPart, SharedShocks)


@dataclass(frozen=True)
class Conditioned:
    """Predictions of some cells from their neighbours.

    Parameters
    ----------
    mean, variance
        Of f and the terms at every cell.
    near, weight
        Numbers of its neighbours among the observed cells, and the weights of their misfits in the mean, 0 where there
        is none.
    """

    mean: Float[Tensor, " b"]
    variance: Float[Tensor, " b"]
    near: Int[Tensor, "b k"]
    weight: Float[Tensor, "b k"]

    @classmethod
    def joined(cls, parts: "Iterable[tuple[Tensor, Conditioned]]") -> "Conditioned":
        """Predictions of all cells, in the order of their numbers, from those of parts of them."""
        numbers, found = zip(*parts, strict=True)
        order = torch.cat(numbers).argsort()
        return cls(*(torch.cat(values)[order] for values in zip(*(vars(part).values() for part in found), strict=True)))


class TiledPredictor:
    """Many cells given q(v) and the observed cells around them.

    Parameters
    ----------
    predictor
        What knows the model and finds neighbours.
    """

    def __init__(self, predictor: "NeighborPredictor"):
        self._predictor = predictor

    @torch.no_grad()
    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> Iterator[tuple[Tensor, Conditioned]]:
        """Cells (x, outputs) in tiles: their numbers, and what is predicted."""
        for block in self._blocks(x, outputs):
            cells = _Block(self._predictor, x[block], outputs[block])
            for at in range(0, len(block), _TILE[0] * _TILE[1]):
                tile = slice(at, min(at + _TILE[0] * _TILE[1], len(block)))
                yield block[tile], cells.predict(tile)

    def _blocks(self, x: Tensor, outputs: Tensor) -> Iterator[Tensor]:
        """Numbers of cells, those close together one after another, in blocks."""
        predictor = self._predictor
        # Cells of a table come row by row: most repetitions follow each other.
        inputs, column = (part.numpy() for part in x.unique_consecutive(dim=0, return_inverse=True))
        distinct, number = np.unique(inputs, axis=0, return_inverse=True)
        row = neighborly(predictor.nearness.inputs(torch.as_tensor(distinct)), _TILE[0])[number.reshape(-1)][column]
        which, at = np.unique(outputs.numpy(), return_inverse=True)
        output = neighborly(predictor.places[which], _TILE[1])[at]
        block = (row // _BLOCK[0]) * (len(which) // _BLOCK[1] + 1) + output // _BLOCK[1]
        order = np.lexsort((output, row, output // _TILE[1], row // _TILE[0], block))
        yield from torch.as_tensor(order).split(np.bincount(block)[np.unique(block)].tolist())


class _Block:
    """Cells that are asked about, and all that may be a neighbour of any of them.

    Parameters
    ----------
    predictor
        What knows the model and finds neighbours.
    x, outputs
        The cells.
    """

    def __init__(self, predictor: "NeighborPredictor", x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]):
        self.predictor, model = predictor, predictor.model
        found = predictor.candidates(x, outputs)
        self.seen = found >= 0
        cells, self.index = _numbered(found, len(predictor.cells.y))
        self.cells = torch.as_tensor(cells)
        self.points = predictor.points(self.cells, x, outputs)
        e, self.A, self.mean, slope = predictor.explained(self.points)
        self.k = CovarianceAmong(model.gp.kernel, e)
        self.terms = _TermTables(list(model.terms), self.points)
        # Of observed cells, which alone are neighbours.
        self.noise = predictor.cell_noise[self.cells]
        # S_ii without noise, and what it is without terms that belong to observations.
        left = kernel_diagonal(model.gp.kernel, e) - self.A.square().sum(-1)
        self.own = left + model.terms.variance(self.points)
        self.asked_own = self.own if predictor.has_noise else left + model.terms.variance(self.points, has_noise=False)
        # Σ_p |L_pᵀ Σᵢ wᵢ gᵢ|² has the rows gᵢᵀ L_p.
        self.slopes, self.column, self.num_columns = self._slopes(slope)
        y = self.mean.new_zeros(len(self.mean))
        y[: len(cells)] = predictor.cells.y[self.cells]
        self.misfit = y - self.mean

    def predict(self, tile: slice) -> Conditioned:
        """Predictions of some of the cells."""
        predictor, num_cells = self.predictor, len(self.cells)
        asked = torch.arange(num_cells + tile.start, num_cells + tile.stop)
        near, S_N, seen = self._nearest(asked, self.index[tile], self.seen[tile])
        V, at = map(torch.as_tensor, _numbered(near.numpy(), num_cells))
        S = self._left(V, V)
        S.diagonal().add_(self.noise[V])
        # S_NN of every cell
        (t, n), v = at.shape, len(V)
        S_NN = S.view(-1).index_select(0, _pairs(at, at, v)).view(t, n, n)
        if not bool(seen.all()):
            S_NN = torch.where(seen.unsqueeze(-1) & seen.unsqueeze(-2), S_NN, torch.diag_embed((~seen).to(S.dtype)))
            S_N = torch.where(seen, S_N, 0.0)
        b = torch.cholesky_solve(S_N.unsqueeze(-1), safe_cholesky(S_NN)).squeeze(-1)
        mean = self.mean[asked] + (b * self.misfit[near]).sum(-1)
        d = (self.asked_own[asked] - (b * S_N).sum(-1)).clamp(min=1e-12)
        # ã = a* − Σⱼ bⱼ aⱼ
        ã = self.A[asked].addmm_(b.new_zeros(t, v).scatter_add_(1, at, b), self.A[V], alpha=-1.0)
        variance = ((ã @ predictor.q.covariance) * ã).sum(-1) + d
        if self.slopes is not None:
            variance = variance + self._of_latents(asked, near, b)
        return Conditioned(mean, variance, self.cells[near], b)

    def _of_latents(
        self, asked: Int[Tensor, " t"], near: Int[Tensor, "t n"], b: Float[Tensor, "t n"]
    ) -> Float[Tensor, " t"]:
        """Variance due to latent vectors: Σ_p |Σᵢ wᵢ L_pᵀ gᵢ|² over outputs p, with weights 1 and −b."""
        assert self.slopes is not None
        group = torch.cat([near, asked.unsqueeze(-1)], 1)
        weight = torch.cat([b.neg(), torch.ones_like(b[:, :1])], 1)
        outputs, column = _numbered(self.column[group].numpy(), self.num_columns)
        t, h = len(group), self.slopes.shape[1]
        rows = self.slopes.index_select(0, group.view(-1)).mul_(weight.reshape(-1, 1))
        place = torch.as_tensor(column).add_(len(outputs) * torch.arange(t).unsqueeze(-1)).view(-1)
        sums = rows.new_zeros(t * len(outputs), h).index_add_(0, place, rows)
        return sums.square_().view(t, -1).sum(-1)

    def _nearest(
        self, asked: Int[Tensor, " t"], index: IntArray, seen: Bool[np.ndarray, "t c"]
    ) -> tuple[Int[Tensor, "t n"], Float[Tensor, "t n"], Bool[Tensor, "t n"]]:
        """Candidates that are most correlated with each of some cells, and their covariances S_N with it."""
        U, at = map(torch.as_tensor, _numbered(np.where(seen, index, -1), len(self.cells)))
        is_seen = torch.as_tensor(seen)
        S = self._left(asked, U)
        k = min(self.predictor.k, at.shape[1])
        if k < at.shape[1]:
            share = (S.square() / (self.own[U] + self.noise[U])).gather(1, at)
            near = torch.where(is_seen, share, -1.0).topk(k, dim=1, sorted=False).indices
            at, is_seen = at.gather(1, near), is_seen.gather(1, near)
        if not self.predictor.has_noise:
            S = S - self.terms(asked, U, noise=True)
        return U[at], S.gather(1, at), is_seen

    def _left(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "a b"]:
        """S between points of the block, without noise: what inducing points leave of f, and terms."""
        return self.k(a, b).addmm_(self.A[a], self.A[b].T, alpha=-1.0).add_(self.terms(a, b))

    def _slopes(self, slope: Float[Tensor, "u h"]) -> tuple[Float[Tensor, "u h"] | None, Int[Tensor, " u"], int]:
        """Slopes in units of q(h), the outputs they belong to, numbered anew, and how many these are."""
        latents = self.predictor.model.latents
        distinct, column = self.points.outputs.unique(return_inverse=True)
        if latents.posterior == "point":
            return None, column, len(distinct)
        return torch.einsum("uh,uhj->uj", slope, latents.factor(distinct)[column]), column, len(distinct)


class _TermTables:
    """Covariances of terms among the points of a block.

    Of a term that is a function of inputs times a function of outputs, both are tables over what is distinct.

    Parameters
    ----------
    terms
        The terms.
    points
        The points.
    """

    def __init__(self, terms: list[Term], points: Points):
        self._points = points
        inputs, self._row = _distinct(points.row)
        outputs, self._output = _distinct(points.outputs)
        self._num_inputs, self._num_outputs = len(inputs), len(outputs)
        separable = [term for term in terms if isinstance(term, _SEPARABLE)]
        self._others = [term for term in terms if term not in separable and type(term).covariance != Term.covariance]
        # C = X(x, x') P(p, p'): P at one input, X of the output whose variance is largest.
        at_one, x, row = points[outputs,], points.x[inputs], points.row[inputs]
        at_one = Points(x[:1].expand(len(outputs), -1), at_one.outputs, row[:1].expand(len(outputs)), at_one.h)
        self._tables = []
        for term in separable:
            P = term.covariance(at_one, at_one)
            most = int(P.diagonal().argmax())
            many = len(inputs)
            of_one = Points(x, at_one.outputs[most].expand(many), row, at_one.h[most].expand(many, -1))
            X = term.covariance(of_one, of_one) / P[most, most].clamp(min=1e-300)
            self._tables.append((term.is_noise, X.reshape(-1), P.reshape(-1)))

    def __call__(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"], noise: bool = False) -> Float[Tensor, "a b"]:
        """Covariances between points, of all terms or of those that belong to observations alone."""
        rows = _pairs(self._row[a], self._row[b], self._num_inputs)
        outputs = _pairs(self._output[a], self._output[b], self._num_outputs)
        total = self._points.h.new_zeros(len(rows))
        for is_noise, X, P in self._tables:
            if is_noise or not noise:
                total.addcmul_(X.index_select(0, rows), P.index_select(0, outputs))
        total = total.view(len(a), len(b))
        for term in self._others:
            if term.is_noise or not noise:
                total += term.covariance(self._points[a,], self._points[b,])
        return total


def _pairs(a: Int[Tensor, "*t a"], b: Int[Tensor, "*t b"], width: int) -> Int[Tensor, " k"]:
    """Places of all pairs in a flat table with so many columns."""
    a, b = a.int(), b.int()
    return ((a * width).unsqueeze(-1) + b.unsqueeze(-2)).view(-1)


def _distinct(numbers: Int[Tensor, " u"]) -> tuple[Tensor, Tensor]:
    """Where each distinct number is found, and for every number which of them it is."""
    _, first, which = np.unique(numbers.numpy(), return_index=True, return_inverse=True)
    return torch.as_tensor(first), torch.as_tensor(which.reshape(-1))


def _numbered(found: IntArray, total: int) -> tuple[IntArray, IntArray]:
    """Those of `total` numbers that occur, and for every one found its place among them; 0 for −1."""
    place = np.zeros(total + 1, dtype=np.int64)
    place[found] = 1
    place[-1] = 0
    occurring = np.flatnonzero(place)
    place[occurring] = np.arange(len(occurring))
    return occurring, place[found]
