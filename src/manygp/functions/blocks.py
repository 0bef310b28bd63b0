"""Parts of the joint distribution of cells: each is linear in independent standard normal coefficients.

A block has rows R over its points, and a key for each point: f = C R ζ, where points of one key share their
coefficients ζ ~ N(0, I) and points of different keys have independent ones; a map C leads from points to cells, where
they differ.
Rows of what is known are exact; those of a process are random features, whose covariance is known exactly too.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions.process import At, normalised
from manygp.keyed import normals
from manygp.linalg import sparse_matrix
from manygp.variational.layout import Padding, pad_groups

__all__ = ["Block", "Known", "Left", "Rows"]

# Coefficients that are held at a time, and entries of a covariance.
_MAX_COEFFICIENTS, _MAX_ENTRIES = 8_000_000, 8_000_000


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
        C, sparse, shape (b, u); None if points are cells.
    target
        Variances that cells have exactly, shape (s, b); None if rows say them.
    """

    stream: int
    key: Int[Tensor, " u"] | None = None
    through: Tensor | None = None
    target: Float[Tensor, "s b"] | None = None

    @abstractmethod
    def rows(self) -> Float[Tensor, "s u k"]:
        """R; the first axis is that of the components, or 1 if they are all the same."""

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        """Covariance of R ζ between points."""
        rows = self._rows
        return self._masked(rows[:, a] @ rows[:, b].mT, a, b)

    def _masked(self, covariance: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if self.key is None:
            return covariance
        return torch.where(self.key[a].unsqueeze(-1) == self.key[b], covariance, 0.0)

    @cached_property
    def _rows(self) -> Float[Tensor, "s u k"]:
        return self.rows()

    # -- what follows --------------------------------------------------------------------------------------------

    def cell_covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        """Covariance between cells: C cov Cᵀ."""
        if self.through is None:
            return self.covariance(a, b)
        C = self.through.to_dense()
        Ca, Cb = C[a], C[b]
        ua, ub = (torch.nonzero((part != 0).any(0)).squeeze(-1) for part in (Ca, Cb))
        return Ca[:, ua] @ self.covariance(ua, ub) @ Cb[:, ub].T

    def variance_of_sums(self, W: Tensor) -> Float[Tensor, "s g"]:
        """w cov wᵀ for every row w of a sparse matrix over cells, exactly, by pairs of points."""
        W = W if self.through is None else torch.sparse.mm(self.through.t(), W.to_dense().T).T.to_sparse()
        W = W.coalesce()
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

    def _weights(self, W: Tensor) -> Tensor:
        """W C: weights of points in sums of cells, those of cells scaled so that each has its variance."""
        if self.through is None:
            return W.coalesce()
        dense = W.to_dense()
        if self.target is not None:
            dense = dense * (self.target[0] / self._squared_norms(self._rows[0]).clamp(min=1e-300)).sqrt()
        return torch.sparse.mm(self.through.t(), dense.T).T.to_sparse()

    def row_sums(self, W: Tensor) -> tuple[Int[Tensor, "2 r"], Float[Tensor, "s r k"]]:
        """W C R by key: (row of W, key) of every sum, and the sums."""
        W = self._weights(W)
        return self._sums_by_key(W, self._rows)

    def _sums_by_key(self, W: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        group, point = W.indices()
        key = torch.zeros_like(group) if self.key is None else self.key[point]
        pairs, place = torch.stack([group, key]).unique(dim=1, return_inverse=True)
        by_pair = sparse_matrix(place, point, W.values(), (pairs.shape[1], rows.shape[1])).coalesce()
        return pairs, torch.stack([torch.sparse.mm(by_pair, component) for component in rows])

    def values(self, component: int, draws: Int[Tensor, " n"], seed: int) -> Float[Tensor, "b n"]:
        """C R ζ of cells in some draws, with the rows of one component."""
        rows = self._rows[component if len(self._rows) > 1 else 0]
        target = None if self.target is None else self.target[component if len(self.target) > 1 else 0]
        if self.key is None:
            R = rows if self.through is None else torch.sparse.mm(self.through, rows)
            R = R if target is None else normalised(R, target)
            one = torch.zeros(1, dtype=torch.int64, device=rows.device)
            return R @ normals(seed, self.stream, one, draws, rows.shape[-1])[0].T.to(R)
        values = self._keyed_values(rows, draws, seed)
        if self.through is not None:
            values = torch.sparse.mm(self.through, values)
        if target is not None:
            values = values * (target / self._squared_norms(rows).clamp(min=1e-300)).sqrt().unsqueeze(-1)
        return values

    def _keyed_values(self, rows: Tensor, draws: Tensor, seed: int) -> Float[Tensor, "u n"]:
        assert self.key is not None
        keys, place = self.key.unique(return_inverse=True)
        padding = pad_groups(place, len(keys))
        padded = padding.pad(rows)
        size = max(1, _MAX_COEFFICIENTS // max(rows.shape[-1] * len(draws), 1))
        parts = [
            some @ normals(seed, self.stream, names, draws, rows.shape[-1]).mT.to(rows)
            for names, some in zip(keys.split(size), padded.split(size), strict=True)
        ]
        return padding.take(torch.cat(parts))

    def _squared_norms(self, rows: Tensor) -> Float[Tensor, " b"]:
        """Variances of cells by their rows: squares of sums over the points of each key."""
        if self.through is None:
            return rows.square().sum(-1)
        pairs, sums = self._sums_by_key(self.through.coalesce(), rows.unsqueeze(0))
        return rows.new_zeros(self.through.shape[0]).index_add(0, pairs[0], sums[0].square().sum(-1))


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
        if self.padding is not None or self.at.process.explain is not None:
            return super().row_sums(W)
        W = self._weights(W)
        pairs, sums = self._sums_by_key(W, self.at.K)
        root = self.at.process.root
        assert root is not None
        # A product for each sum, and not for each point.
        return pairs, sums @ self.at.process.Linv.mT @ root


@dataclass(frozen=True, kw_only=True)
class Left(_ProcessBlock):
    """r: what inducing variables, or observations, leave of the process.

    Without random features, where the spectrum of a kernel is not known, `key` must be that of single cells, and draws
    at different cells are independent.
    """

    def rows(self) -> Float[Tensor, "s u k"]:
        if self.at.process.spectrum is None:
            return self._taken(self.at.left().sqrt().unsqueeze(-1))
        rows = self.at.left_rows()
        return self._taken(rows if self.target is not None else normalised(rows, self.at.left()))

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        if self.padding is None:
            return self._at(a).left_covariance(self._at(b))
        return self._pairs(self.at.left_covariance(self.at), a, b)

    def row_sums(self, W: Tensor) -> tuple[Int[Tensor, "2 r"], Float[Tensor, "s r k"]]:
        process = self.at.process
        if self.padding is not None or process.explain is not None or process.spectrum is None:
            return super().row_sums(W)
        W = self._weights(W)
        φ = process.spectrum(self.at.points)
        pairs, sums = self._sums_by_key(W, torch.cat([self.at.K, φ], -1))
        m = self.at.K.shape[-1]
        explained = sums[..., :m] @ process.Linv.mT @ process.whitened
        f = φ.shape[-1]
        return pairs, torch.cat([sums[..., m:] - explained[..., :f], -explained[..., f:]], -1)


def _rowwise(W: Tensor, dense: Float[Tensor, "g u"]) -> Float[Tensor, " g"]:
    """Σ_u W_gu dense_gu for a sparse W."""
    group, point = W.indices()
    return dense.new_zeros(len(dense)).index_add(0, group, W.values() * dense[group, point])
