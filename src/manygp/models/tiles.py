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
from manygp.variational import Latents

if TYPE_CHECKING:
    from manygp.models.neighbors import NeighborPredictor

__all__ = ["CellBlock", "Conditioned", "TiledPredictor", "in_units", "rows_of"]

# Inputs and cells of a block, whose neighbours are embedded together.
_BLOCK_INPUTS, _BLOCK_CELLS = 64, 16_384
# Inputs and outputs of a tile, whose candidates are looked at together; more inputs where there are fewer outputs.
_TILE = (4, 64)
# Cells of a tile that have their candidates ranked together, of so many outputs, and those whose neighbours have their
# covariances computed together, of as few inputs as can be: these have most neighbours in common.
_PART, _RANKED_OUTPUTS = 64, 16
# Rows of a covariance that are computed together, up to the diagonal.
_ROWS = 128
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
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"], blocks: "list[CellBlock] | None" = None
    ) -> Iterator[tuple[Tensor, Conditioned]]:
        """Cells (x, outputs) in tiles: their numbers, and what is predicted; blocks go to a list, if there is one."""
        for numbers, sizes in self._blocks(x, outputs):
            cells, start = CellBlock(self._predictor, numbers, x[numbers], outputs[numbers]), 0
            if blocks is not None:
                blocks.append(cells)
            for size in sizes:
                tile = slice(start, start + size)
                yield from ((numbers[tile][which], found) for which, found in cells.predict(tile))
                start += size

    def _blocks(self, x: Tensor, outputs: Tensor) -> Iterator[tuple[Tensor, list[int]]]:
        """Numbers of cells, those close together one after another, in blocks, and the sizes of tiles in each."""
        predictor = self._predictor
        # Cells of a table come row by row: most repetitions follow each other.
        inputs, column = (part.numpy() for part in x.unique_consecutive(dim=0, return_inverse=True))
        distinct, number = np.unique(inputs, axis=0, return_inverse=True)
        which, at = np.unique(outputs.numpy(), return_inverse=True)
        tile_outputs = min(_TILE[1], len(which))
        tile_inputs = _TILE[0] * _TILE[1] // tile_outputs
        row = neighborly(predictor.inputs_at(torch.as_tensor(distinct)), tile_inputs)[number.reshape(-1)][column]
        output = neighborly(predictor.places[which], _RANKED_OUTPUTS)[at]
        # Whole tiles in whole blocks
        block_inputs = -(-min(_BLOCK_INPUTS, len(distinct)) // tile_inputs) * tile_inputs
        block_outputs = -(-_BLOCK_CELLS // (block_inputs * tile_outputs)) * tile_outputs
        block = (row // block_inputs) * (len(which) // block_outputs + 1) + output // block_outputs
        part = (output // _RANKED_OUTPUTS, row // tile_inputs, output // tile_outputs, block)
        order = np.lexsort((output, row, *part))
        # Tiles end where the tile of outputs, or that of inputs, changes.
        tiles = np.stack([of[order] for of in part[1:]])
        start = np.flatnonzero(np.r_[True, (tiles[:, 1:] != tiles[:, :-1]).any(0)])
        sizes = np.diff(np.r_[start, len(order)])
        of_block = block[order][start]
        numbers = torch.as_tensor(order).split(np.bincount(block)[np.unique(block)].tolist())
        for name, chosen in zip(np.unique(of_block), numbers, strict=True):
            yield chosen, sizes[of_block == name].tolist()


class CellBlock:
    """Cells that are asked about, and all that may be a neighbour of any of them.

    Parameters
    ----------
    predictor
        What knows the model and finds neighbours.
    numbers, x, outputs
        The cells, and their numbers among all that are asked about.
    """

    def __init__(
        self,
        predictor: "NeighborPredictor",
        numbers: Int[Tensor, " b"],
        x: Float[Tensor, "b d"],
        outputs: Int[Tensor, " b"],
    ):
        self.predictor, self.numbers, model = predictor, numbers, predictor.model
        found = predictor.candidates(x, outputs)
        self.seen = found >= 0
        cells, self.index = _numbered(found, len(predictor.cells.y))
        self.cells = torch.as_tensor(cells)
        self.points, self.asked = _without_repetition(predictor.points(self.cells, x, outputs), len(cells))
        self.e, self.A, self.mean, slope = predictor.explained(self.points)
        self.terms = _TermTables.of(list(model.terms), self.points)
        # Of observed cells, which alone are neighbours; nothing is asked of the others.
        self.noise, self.misfit = torch.zeros_like(self.mean), -self.mean
        self.noise[: len(cells)] = predictor.cell_noise[self.cells]
        self.misfit[: len(cells)] += predictor.cells.y[self.cells]
        # S_ii without noise, and what it is without terms that belong to observations.
        left = kernel_diagonal(model.gp.kernel, self.e) - self.A.square().sum(-1)
        self.own = left + model.terms.variance(self.points)
        self.asked_own = self.own if predictor.has_noise else left + model.terms.variance(self.points, has_noise=False)
        # Σ_p |L_pᵀ Σᵢ wᵢ gᵢ|² has the rows gᵢᵀ L_p.
        self.slopes = in_units(model.latents, slope, self.points.outputs)

    def predict(self, tile: slice) -> Iterator[tuple[Tensor, Conditioned]]:
        """Some of the cells in parts: their numbers, and what is predicted."""
        index, asked = self.index[tile], self.asked[tile].numpy()
        points, at = _numbered(np.concatenate([index, asked[:, None]], 1), len(self.points.x))
        cells = _Tile(self, torch.as_tensor(points), torch.as_tensor(at[:, -1]))
        parts = [slice(start, start + _PART) for start in range(0, len(at), _PART)]
        ranked = [cells.nearest(part, at[part, :-1], self.seen[tile][part]) for part in parts]
        near, S_N, seen = map(torch.cat, zip(*ranked, strict=True))
        for which in cells.by_input().split(_PART):
            mean, variance, b = cells.condition(which, near[which], S_N[which], seen[which])
            yield which, Conditioned(mean, variance, self.cells[cells.numbers[near[which]]], b)


def in_units(latents: Latents, slope: Float[Tensor, "u h"], outputs: Int[Tensor, " u"]) -> Float[Tensor, "u h"] | None:
    """Slopes Lᵀg in units of q(h), h = m + L ε; None where latent vectors are known."""
    if latents.posterior == "point":
        return None
    distinct, column = outputs.unique(return_inverse=True)
    return torch.einsum("uh,uhj->uj", slope, latents.factor(distinct).detach()[column])


class _Tile:
    """Some cells of a block and their candidates, which all that is close at hand is about.

    Parameters
    ----------
    block
        The block.
    numbers
        Points of the block that there are.
    asked
        Which of these the cells are.
    """

    def __init__(self, block: CellBlock, numbers: Int[Tensor, " u"], asked: Int[Tensor, " t"]):
        self.predictor, self.numbers, self.asked = block.predictor, numbers, asked
        self.terms, self._block = block.terms.some(numbers), block
        self.k = CovarianceAmong(self.predictor.model.gp.kernel, block.e[numbers])
        self.mean, self.misfit, self.noise = block.mean[numbers], block.misfit[numbers], block.noise[numbers]
        self.own, self.asked_own = block.own[numbers], block.asked_own[numbers]
        self.slopes = None if block.slopes is None else block.slopes[numbers]
        outputs, column = block.points.outputs[numbers].unique(return_inverse=True)
        self.column, self.num_columns = column, len(outputs)
        self._inputs = block.points.row[numbers]

    def by_input(self) -> Int[Tensor, " t"]:
        """The cells in an order in which those of one input follow each other."""
        return self._inputs[self.asked].argsort(stable=True)

    def nearest(
        self, cells: slice, index: IntArray, seen: Bool[np.ndarray, "t c"]
    ) -> tuple[Int[Tensor, "t n"], Float[Tensor, "t n"], Bool[Tensor, "t n"]]:
        """Candidates that are most correlated with each of some cells, in order, and their covariances S_N with it."""
        asked = self.asked[cells]
        U, at = map(torch.as_tensor, _numbered(np.where(seen, index, -1), len(self.numbers)))
        is_seen = torch.as_tensor(seen)
        S = self._left(asked, U, self._explained(asked), self._explained(U))
        k = min(self.predictor.k, at.shape[1])
        if k < at.shape[1]:
            share = (S.square() / (self.own[U] + self.noise[U])).gather(1, at)
            near = torch.where(is_seen, share, -1.0).topk(k, dim=1, sorted=False).indices.sort(1).values
            at, is_seen = at.gather(1, near), is_seen.gather(1, near)
        if not self.predictor.has_noise:
            S = S - self.terms(asked, U, noise=True)
        return U[at], S.gather(1, at), is_seen

    def condition(
        self, cells: Int[Tensor, " t"], near: Int[Tensor, "t n"], S_N: Float[Tensor, "t n"], seen: Bool[Tensor, "t n"]
    ) -> tuple[Float[Tensor, " t"], Float[Tensor, " t"], Float[Tensor, "t n"]]:
        """Means and variances of some cells given their neighbours, and the weights of these."""
        predictor, asked, (t, n) = self.predictor, self.asked[cells], near.shape
        V, at = map(torch.as_tensor, _numbered(near.numpy(), len(self.numbers)))
        A = self._explained(V)
        # S_NN of every cell
        S_NN = self._lower(V, A).view(-1).index_select(0, _pairs(at, at, len(V))).view(t, n, n)
        if not bool(seen.all()):
            S_NN = torch.where(seen.unsqueeze(-1) & seen.unsqueeze(-2), S_NN, torch.diag_embed((~seen).to(S_NN.dtype)))
            S_N = torch.where(seen, S_N, 0.0)
        b = torch.cholesky_solve(S_N.unsqueeze(-1), safe_cholesky(S_NN)).squeeze(-1)
        mean = self.mean[asked] + (b * self.misfit[near]).sum(-1)
        d = (self.asked_own[asked] - (b * S_N).sum(-1)).clamp(min=1e-12)
        # ã = a* − Σⱼ bⱼ aⱼ
        ã = self._explained(asked).addmm_(b.new_zeros(t, len(V)).scatter_add_(1, at, b), A, alpha=-1.0)
        variance = ((ã @ predictor.q.covariance) * ã).sum(-1) + d
        if self.slopes is not None:
            variance = variance + self._of_latents(self.slopes, asked, near, b)
        return mean, variance, b

    def _explained(self, points: Int[Tensor, " v"]) -> Float[Tensor, "v m"]:
        """Rows A of some points."""
        return self._block.A[self.numbers[points]]

    def _of_latents(
        self, slopes: Float[Tensor, "u h"], asked: Int[Tensor, " t"], near: Int[Tensor, "t n"], b: Float[Tensor, "t n"]
    ) -> Float[Tensor, " t"]:
        """Variance due to latent vectors: Σ_p |Σᵢ wᵢ L_pᵀ gᵢ|² over outputs p, with weights 1 and −b."""
        group = torch.cat([near, asked.unsqueeze(-1)], 1)
        weight = torch.cat([b.neg(), torch.ones_like(b[:, :1])], 1)
        t, h = len(group), slopes.shape[1]
        rows = slopes.index_select(0, group.view(-1)).mul_(weight.reshape(-1, 1))
        place = self.column[group].add_(self.num_columns * torch.arange(t).unsqueeze(-1)).view(-1)
        sums = rows.new_zeros(t * self.num_columns, h).index_add_(0, place, rows)
        return sums.square_().view(t, -1).sum(-1)

    def _lower(self, V: Int[Tensor, " v"], A: Float[Tensor, "v m"]) -> Float[Tensor, "v v"]:
        """S among observed cells with their noise, of which Cholesky factorisations ask the lower triangle alone."""
        S = A.new_zeros(len(V), len(V))
        for start in range(0, len(V), _ROWS):
            rows, upto = slice(start, start + _ROWS), slice(0, start + _ROWS)
            S[rows, upto] = self._left(V[rows], V[upto], A[rows], A[upto])
        S.diagonal().add_(self.noise[V])
        return S

    def _left(
        self, a: Int[Tensor, " a"], b: Int[Tensor, " b"], Aa: Float[Tensor, "a m"], Ab: Float[Tensor, "b m"]
    ) -> Float[Tensor, "a b"]:
        """S between points, without noise: what inducing points leave of f, and terms."""
        return self.k(a, b).addmm_(Aa, Ab.T, alpha=-1.0).add_(self.terms(a, b))


def rows_of(
    blocks: list[CellBlock], cells: Int[Tensor, " n"], num_asked: int
) -> tuple[Float[Tensor, "u e"], Float[Tensor, "u m"], Float[Tensor, "u h"] | None]:
    """Embeddings, rows A, and slopes in units of q(h), of observed cells and all that were asked about behind them."""
    total, first = len(cells) + num_asked, blocks[0]
    e, A = first.e.new_empty(total, first.e.shape[1]), first.A.new_empty(total, first.A.shape[1])
    slopes = None if first.slopes is None else first.slopes.new_empty(total, first.slopes.shape[1])
    for block in blocks:
        at = torch.searchsorted(block.cells, cells).clamp(max=len(block.cells) - 1)
        is_here = block.cells[at] == cells
        into = torch.cat([is_here.nonzero().squeeze(-1), len(cells) + block.numbers])
        places = torch.cat([at[is_here], block.asked])
        e[into], A[into] = block.e[places], block.A[places]
        if slopes is not None and block.slopes is not None:
            slopes[into] = block.slopes[places]
    return e, A, slopes


class _TermTables:
    """Covariances of terms among some points.

    Of a term that is a function of inputs times a function of outputs, both are tables over what is distinct.

    Parameters
    ----------
    points
        The points.
    row, output
        Their places in the tables.
    tables
        Functions of inputs and of outputs, and whether the term belongs to observations.
    others
        All other terms.
    """

    def __init__(
        self,
        points: Points,
        row: Int[Tensor, " u"],
        output: Int[Tensor, " u"],
        tables: list[tuple[Float[Tensor, "r r"], Float[Tensor, "p p"], bool]],
        others: list[Term],
    ):
        self._points, self._row, self._output, self._tables, self._others = points, row, output, tables, others

    @classmethod
    def of(cls, terms: list[Term], points: Points) -> "_TermTables":
        """Tables of terms among points."""
        (inputs, row), (outputs, output) = _distinct(points.row), _distinct(points.outputs)
        separable = [term for term in terms if isinstance(term, _SEPARABLE)]
        others = [term for term in terms if term not in separable and type(term).covariance != Term.covariance]
        # C = X(x, x') P(p, p'): P at one input, X of the output whose variance is largest.
        at_one, x, number = points[outputs,], points.x[inputs], points.row[inputs]
        at_one = Points(x[:1].expand(len(outputs), -1), at_one.outputs, number[:1].expand(len(outputs)), at_one.h)
        tables = []
        for term in separable:
            P = term.covariance(at_one, at_one)
            most = int(P.diagonal().argmax())
            many = len(inputs)
            of_one = Points(x, at_one.outputs[most].expand(many), number, at_one.h[most].expand(many, -1))
            X = term.covariance(of_one, of_one) / P[most, most].clamp(min=1e-300)
            tables.append((X, P, term.is_noise))
        return cls(points, row, output, tables, others)

    def some(self, at: Int[Tensor, " v"]) -> "_TermTables":
        """The same among some of the points."""
        inputs, row = self._row[at].unique(return_inverse=True)
        outputs, output = self._output[at].unique(return_inverse=True)
        tables = [
            (X[inputs.unsqueeze(1), inputs], P[outputs.unsqueeze(1), outputs], is_noise)
            for X, P, is_noise in self._tables
        ]
        return _TermTables(self._points[at,], row, output, tables, self._others)

    def __call__(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"], noise: bool = False) -> Float[Tensor, "a b"]:
        """Covariances between points, of all terms or of those that belong to observations alone."""
        total = self._points.h.new_zeros(len(a) * len(b))
        if self._tables:
            rows = _pairs(self._row[a], self._row[b], len(self._tables[0][0]))
            outputs = _pairs(self._output[a], self._output[b], len(self._tables[0][1]))
        for X, P, is_noise in self._tables:
            if is_noise or not noise:
                total.addcmul_(X.view(-1).index_select(0, rows), P.view(-1).index_select(0, outputs))
        total = total.view(len(a), len(b))
        for term in self._others:
            if term.is_noise or not noise:
                total += term.covariance(self._points[a,], self._points[b,])
        return total


def _without_repetition(points: Points, num_observed: int) -> tuple[Points, Int[Tensor, " b"]]:
    """Points without those cells behind the observed ones that are observed, and where each of these cells is."""
    row, output = points.row, points.outputs
    key = (row * (output.max() + 1) + output).numpy()
    # New inputs have negative numbers, which no observed cell has.
    order = np.argsort(key[:num_observed], kind="stable")
    place = np.searchsorted(key[:num_observed], key[num_observed:], sorter=order).clip(max=num_observed - 1)
    same = order[place]
    # An input that was rounded is known by the number of another, but is not the same.
    differs = (points.x[same] != points.x[num_observed:]).any(-1).numpy()
    is_new = (key[same] != key[num_observed:]) | differs
    asked = torch.as_tensor(np.where(is_new, num_observed + np.cumsum(is_new) - 1, same))
    kept = torch.cat([torch.arange(num_observed), num_observed + torch.as_tensor(np.flatnonzero(is_new))])
    return points[kept,], asked


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
    # Where none occurs, the first stands for it.
    place[0] |= not place.any()
    occurring = np.flatnonzero(place)
    place[occurring] = np.arange(len(occurring))
    return occurring, place[found]
