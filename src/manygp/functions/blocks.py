"""Parts of the joint distribution of cells: each is linear in independent standard normal coefficients.

A block has rows R over its points, and a key for each point: f = C R ζ, where points of one key share their
coefficients ζ ~ N(0, I) and points of different keys have independent ones; a combination C leads from points to cells,
where they differ.
Rows of what is known are exact; those of a process are random features, whose covariance is known exactly too.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions.process import At, normalised
from manygp.keyed import normals
from manygp.linalg import sparse_matrix
from manygp.variational.layout import Padding, pad_groups

__all__ = ["Block", "Combination", "Known", "Left", "Rows"]

# Coefficients that are held at a time, and entries of a covariance.
_MAX_COEFFICIENTS, _MAX_ENTRIES = 2_000_000, 8_000_000
# Points whose random features are made together: as many as stay in the cache.
_TOGETHER = 256


@dataclass(frozen=True)
class Combination:
    """C: cells as weighted sums of a few points each.

    Parameters
    ----------
    index, weight
        The points of every cell and their weights, shape (b, k).
    num_points
        Number u of points.
    lots
        Numbers of cells that have most of their points in common, lot by lot; None where cells have few.
    """

    index: Int[Tensor, "b k"]
    weight: Float[Tensor, "b k"]
    num_points: int
    lots: Sequence[Int[Tensor, " _"]] | None = None

    @cached_property
    def matrix(self) -> Tensor:
        """C, sparse, shape (b, u)."""
        b, k = self.index.shape
        cell = torch.arange(b, device=self.index.device).repeat_interleave(k)
        return sparse_matrix(cell, self.index.flatten(), self.weight.flatten(), (b, self.num_points)).coalesce()

    @cached_property
    def _dense(self) -> list[tuple[Int[Tensor, " l"], Float[Tensor, "l v"], Int[Tensor, " v"]]]:
        """Rows of C by lot, dense over the points that they use."""
        return [(cells, *self.of(cells)) for cells in self.lots or ()]

    def times(self, values: Float[Tensor, "u k"]) -> Float[Tensor, "b k"]:
        """C times values of points."""
        if self.lots is None:
            return torch.sparse.mm(self.matrix, values)
        result = values.new_empty(len(self.index), values.shape[1])
        for cells, weight, used in self._dense:
            result[cells] = weight @ values.index_select(0, used)
        return result

    def of_sums(self, W: Tensor) -> Tensor:
        """W C for sparse weights of cells (g, b)."""
        group, cell = W.indices()
        values = W.values().unsqueeze(-1) * self.weight[cell]
        rows = group.repeat_interleave(self.index.shape[1])
        shape = W.shape[0], self.num_points
        return sparse_matrix(rows, self.index[cell].flatten(), values.flatten(), shape).coalesce()

    def of(self, cells: Int[Tensor, " a"]) -> tuple[Float[Tensor, "a u"], Int[Tensor, " u"]]:
        """Weights of some cells, dense over the points that they use, and these."""
        used, at = self.index[cells].unique(return_inverse=True)
        zeros = self.weight.new_zeros(len(cells), len(used))
        return zeros.scatter_add(1, at, self.weight[cells]), used


@dataclass(frozen=True, kw_only=True)
class Block(ABC):
    """Interface.

    Parameters
    ----------
    stream
        A number of its own for every block of a model, which its coefficients are drawn with.
    key
        The key of every point, shape (u,); None if all points share their coefficients.
    through
        C; None if points are cells.
    """

    stream: int
    key: Int[Tensor, " u"] | None = None
    through: Combination | None = None

    @abstractmethod
    def rows(self) -> Float[Tensor, "s u k"]:
        """R; the first axis is that of the components, or 1 if they are all the same."""

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        """Covariance of R ζ between points."""
        rows = self._rows
        covariance = rows[:, a] @ rows[:, b].mT
        if self.key is None:
            return covariance
        return torch.where(self.key[a].unsqueeze(-1) == self.key[b], covariance, 0.0)

    @cached_property
    def _rows(self) -> Float[Tensor, "s u k"]:
        return self.rows()

    # -- what follows --------------------------------------------------------------------------------------------

    def variance_of_sums(self, W: Tensor) -> Float[Tensor, "s g"]:
        """w cov wᵀ for every row w of a sparse matrix over cells, exactly, by pairs of points."""
        W = self._over_points(W)
        used, at = W.indices()[1].unique(return_inverse=True)
        weights = sparse_matrix(W.indices()[0], at, W.values(), (W.shape[0], len(used)))
        total: Tensor | float = 0.0
        for part in used.split(max(1, _MAX_ENTRIES // max(len(used), 1))):
            C = self.covariance(part, used)
            rows = torch.searchsorted(used, part)
            own = weights.index_select(1, rows).coalesce()
            # Σ_u w_gu (w_g cov)_u, of one component after another
            sums = torch.stack([_rowwise(own, torch.sparse.mm(weights, component.T)) for component in C])
            total = total + sums
        assert isinstance(total, Tensor)
        return total

    def row_sums(self, W: Tensor) -> tuple[Int[Tensor, "2 r"], Float[Tensor, "s r k"]]:
        """W C R by key: (row of W, key) of every sum, and the sums."""
        return self._sums_by_key(self._over_points(W), self._rows)

    @cached_property
    def sums_of_cells(self) -> tuple[Int[Tensor, "2 r"], Float[Tensor, "s r k"]]:
        """C R by key."""
        assert self.through is not None
        every = torch.arange(len(self.through.index), device=self.through.index.device)
        if self.key is None:
            return torch.stack([every, torch.zeros_like(every)]), self._rows_of_cells(self.through)
        one = torch.ones_like(self.through.weight[:, 0])
        return self.row_sums(sparse_matrix(every, every, one, (len(every), len(every))))

    def _rows_of_cells(self, through: Combination) -> Float[Tensor, "1 b k"]:
        """C R of points that share their coefficients and do not depend on the component."""
        return through.times(self._rows[0]).unsqueeze(0)

    def _over_points(self, W: Tensor) -> Tensor:
        """W C."""
        return W.coalesce() if self.through is None else self.through.of_sums(W.coalesce())

    def _sums_by_key(self, W: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        group, point = W.indices()
        if self.key is None:
            every = torch.arange(W.shape[0], device=W.device)
            return torch.stack([every, torch.zeros_like(every)]), _stacked([W @ component for component in rows])
        keys, number = self.key.unique(return_inverse=True)
        pairs, place = (group * len(keys) + number[point]).unique(return_inverse=True)
        by_pair = sparse_matrix(place, point, W.values(), (len(pairs), rows.shape[1]))
        named = torch.stack([pairs // len(keys), keys[pairs % len(keys)]])
        return named, _stacked([torch.sparse.mm(by_pair, component) for component in rows])

    def values(self, component: int, draws: Int[Tensor, " n"], seed: int) -> Float[Tensor, "u n"]:
        """R ζ of points in some draws, with the rows of one component."""
        rows = self._rows[component if len(self._rows) > 1 else 0]
        if self.key is None:
            return rows @ self.coefficients(draws, seed, rows.shape[-1]).to(rows)
        values = rows.new_zeros(len(rows), len(draws))
        used = (rows != 0.0).any(-1).nonzero().squeeze(-1)
        if not len(used):
            return values
        keys, place = self.key[used].unique(return_inverse=True)
        padding = pad_groups(place, len(keys))
        padded = padding.pad(rows[used])
        size = max(1, _MAX_COEFFICIENTS // max(rows.shape[-1] * len(draws), 1))
        parts = [
            some @ normals(seed, self.stream, names, draws, rows.shape[-1]).mT.to(rows)
            for names, some in zip(keys.split(size), padded.split(size), strict=True)
        ]
        values[used] = padding.take(parts[0] if len(parts) == 1 else torch.cat(parts))
        return values

    def coefficients(self, draws: Int[Tensor, " n"], seed: int, width: int) -> Float[Tensor, "k n"]:
        """ζ of all points together."""
        return normals(seed, self.stream, torch.zeros(1, dtype=torch.int64, device=draws.device), draws, width)[0].T


@dataclass(frozen=True, kw_only=True)
class Rows(Block):
    """Rows as they are told."""

    values_of: Float[Tensor, "s u k"] = field(repr=False)

    def rows(self) -> Float[Tensor, "s u k"]:
        return self.values_of


@dataclass(frozen=True, kw_only=True)
class _ProcessBlock(Block):
    """Parts of a process at points (s, u, e); or of a batch of processes, whose points are padded to (q, w, e)."""

    at: At = field(repr=False)
    padding: Padding | None = None
    #: What rows of points are multiplied by.
    scale: Float[Tensor, " u"] | None = None

    def _taken(self, values: Tensor) -> Tensor:
        """Values of points, (s, u, ...), from those of a padded batch."""
        taken = values if self.padding is None else self.padding.take(values).unsqueeze(0)
        return taken if self.scale is None else taken * self.scale.unsqueeze(-1)

    def _pairs(self, of_batch: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Covariances (1, a, b) from those of a padded batch, zero between processes."""
        assert self.padding is not None
        place = self.padding.place
        process, position = place // self.padding.width, place % self.padding.width
        pairs = of_batch[process[a].unsqueeze(-1), position[a].unsqueeze(-1), position[b]]
        same = torch.where(process[a].unsqueeze(-1) == process[b], pairs, 0.0)
        if self.scale is not None:
            same = self.scale[a].unsqueeze(-1) * same * self.scale[b]
        return same.unsqueeze(0)

    def _at(self, at: Tensor) -> At:
        """The process at some of its points."""
        some = At(self.at.process, self.at.points[..., at, :])
        some.A = self.at.A[..., at, :]
        return some


@dataclass(frozen=True, kw_only=True)
class Known(_ProcessBlock):
    """A (v − m): what inducing variables tell."""

    def rows(self) -> Float[Tensor, "s u k"]:
        return self._taken(self.at.known_rows())

    def row_sums(self, W: Tensor) -> tuple[Int[Tensor, "2 r"], Float[Tensor, "s r k"]]:
        if self.padding is not None:
            return super().row_sums(W)
        pairs, sums = self._sums_by_key(self._over_points(W), self.at.A)
        root = self.at.process.root
        assert root is not None
        # A product for each sum, and not for each point.
        return pairs, sums @ root

    def _rows_of_cells(self, through: Combination) -> Float[Tensor, "1 b k"]:
        root = self.at.process.root
        if self.padding is not None or root is None:
            return super()._rows_of_cells(through)
        return (through.times(self.at.A[0]) @ root).unsqueeze(0)


@dataclass(frozen=True, kw_only=True)
class Left(_ProcessBlock):
    """r: what inducing variables, or observations, leave of the process.

    Without random features, where the spectrum of a kernel is not known, `key` must be that of single cells, and draws
    at different cells are independent. Rows of features have the variances of their points, where these are cells.
    """

    def rows(self) -> Float[Tensor, "s u k"]:
        if self.at.process.spectrum is None:
            return self._taken(self.at.left().sqrt().unsqueeze(-1))
        rows = self.at.left_rows()
        return self._taken(normalised(rows, self.at.left()) if self.through is None or self.padding else rows)

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        if self.padding is None:
            return self._at(a).left_covariance(self._at(b))
        return self._pairs(self.at.left_covariance(self.at), a, b)

    def row_sums(self, W: Tensor) -> tuple[Int[Tensor, "2 r"], Float[Tensor, "s r k"]]:
        process = self.at.process
        if self.padding is not None or process.spectrum is None:
            return super().row_sums(W)
        φ = process.spectrum(self.at.points)
        pairs, sums = self._sums_by_key(self._over_points(W), torch.cat([self.at.A, φ], -1))
        m = self.at.A.shape[-1]
        return pairs, process.left_rows(sums[..., :m], sums[..., m:])

    def _rows_of_cells(self, through: Combination) -> Float[Tensor, "1 b k"]:
        process = self.at.process
        if self.padding is not None or process.spectrum is None:
            return super()._rows_of_cells(through)
        points = self.at.points[0]
        φ = points.new_empty(len(points), process.spectrum(points[:0]).shape[-1])
        for some, features in zip(points.split(_TOGETHER), φ.split(_TOGETHER), strict=True):
            features.copy_(process.spectrum(some))
        return process.left_rows(through.times(self.at.A[0]), through.times(φ)).unsqueeze(0)


def _stacked(parts: list[Tensor]) -> Tensor:
    """Arrays with a new first axis; a single one is not copied."""
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)


def _rowwise(W: Tensor, dense: Float[Tensor, "g u"]) -> Float[Tensor, " g"]:
    """Σ_u W_gu dense_gu for a sparse W."""
    group, point = W.indices()
    return dense.new_zeros(len(dense)).index_add(0, group, W.values() * dense[group, point])
