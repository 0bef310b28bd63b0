"""Predictions from two scales: inducing points, and the observed cells around what is predicted.

With N the neighbours of a cell, S = R − A Aᵀ the covariance that inducing points leave, and q(v) = N(m, V),

    b = S_NN⁻¹ S_N*,   ã = a* − Σⱼ bⱼ aⱼ,   d = S_** − bᵀ S_N*
    mean = a*ᵀm + bᵀ (y_N − A_N m),   variance = ãᵀ V ã + d
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from manygp.data.search import CellSearch
from manygp.data.table import FloatArray, IntArray
from manygp.kernels import cross_covariance, kernel_diagonal
from manygp.linalg import projected, safe_cholesky
from manygp.models.tiles import CellBlock, Conditioned, TiledPredictor
from manygp.terms import Points
from manygp.variational.known_inputs import KnownInputs

if TYPE_CHECKING:
    from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["Local", "NeighborPredictor", "ObservedCells"]

# Candidates for the neighbours of a cell: cells of outputs that are near, so many in all, of the output itself, and
# outputs at the same input.
_CANDIDATES, _NEAR_OUTPUTS, _OWN, _HERE = 96, 16, 16, 64
# Numbers of rows A of neighbours that are held at a time.
_CHUNK_NUMBERS = 6_000_000
# Points whose covariances with inducing points are worked on together: as many as stay in the cache.
_EXPLAINED_ROWS = 512


class ObservedCells(nn.Module):
    """The cells that a model was fitted to, in scaled units, for predictions from neighbours.

    Parameters
    ----------
    num_inputs, num_features, num_cells
        Number of distinct inputs, of their dimensions, and of cells.

    Attributes
    ----------
    inputs
        Distinct inputs, shape (n, d).
    row, output
        Input and output of every cell, shape (c,).
    y
        Values, shape (c,).
    noise
        Known variances of their noise, shape (c,); None where nothing is known.
    num_shared
        Cells of the first outputs, so many, are neighbours of any cell; those of others, which came later, are
        neighbours of their own output alone, so that nothing that was predicted before changes.
    """

    inputs: Tensor
    row: Tensor
    output: Tensor
    y: Tensor
    noise: Tensor | None

    def __init__(self, num_inputs: int, num_features: int, num_cells: int, has_noise: int, num_shared: int):
        super().__init__()
        self.num_shared = num_shared
        self.register_buffer("inputs", torch.zeros(num_inputs, num_features, dtype=torch.float64))
        for name in ("row", "output"):
            self.register_buffer(name, torch.zeros(num_cells, dtype=torch.int32))
        self.register_buffer("y", torch.zeros(num_cells, dtype=torch.float64))
        self.register_buffer("noise", torch.zeros_like(self.y) if has_noise else None)

    @classmethod
    def of(
        cls, inputs: Tensor, row: Tensor, output: Tensor, y: Tensor, noise: Tensor | None, num_shared: int
    ) -> "ObservedCells":
        """Cells as they are told."""
        num_inputs, num_features = inputs.shape
        cells = cls(num_inputs, num_features, len(y), int(noise is not None), num_shared).to(y.device)
        for name, values in {"inputs": inputs, "row": row, "output": output, "y": y, "noise": noise}.items():
            if values is not None:
                getattr(cells, name).copy_(values)
        return cells

    def sizes(self) -> tuple[int, ...]:
        """Sizes of cells like these."""
        return (*self.inputs.shape, len(self.y), int(self.noise is not None), self.num_shared)

    def without(self, gone: Bool[Tensor, " c"]) -> "ObservedCells":
        """All but some of the cells; inputs that have none any more go."""
        kept, row = self.row[~gone].long().unique(return_inverse=True)
        noise = None if self.noise is None else self.noise[~gone]
        return self.of(self.inputs[kept], row, self.output[~gone], self.y[~gone], noise, self.num_shared)

    def joined(self, x: Float[Tensor, "k d"], output: Int[Tensor, " k"], y: Float[Tensor, " k"]) -> "ObservedCells":
        """These cells and others behind them, with the known noise that is usual; equal inputs are shared."""
        n = len(self.inputs)
        number = torch.cat([self.inputs, x]).unique(dim=0, return_inverse=True)[1]
        # The first place at which an input stands; new ones are counted behind the old.
        places = torch.arange(len(number)).to(number)
        first = torch.full_like(number, len(number)).scatter_reduce(0, number, places, "amin")
        new, row = first[number[n:]].unique(return_inverse=True)
        is_new = new >= n
        target = torch.where(is_new, n + is_new.long().cumsum(0) - 1, new)
        noise = None if self.noise is None else torch.cat([self.noise, self.noise.mean().expand(len(y))])
        return self.of(
            torch.cat([self.inputs, x[new[is_new] - n]]),
            torch.cat([self.row.long(), target[row]]),
            torch.cat([self.output.long(), output]),
            torch.cat([self.y, y]),
            noise,
            self.num_shared,
        )


@dataclass(frozen=True)
class Local:
    """Cells that are asked about, each with its neighbours.

    Parameters
    ----------
    points
        Observed cells that are a neighbour of any, and the cells that are asked about behind them, u in all.
    e, A, mean, slope
        Embeddings, rows of what inducing points explain, means given q(v) alone, and slopes of these in h.
    cells
        Numbers of the observed cells.
    at, seen
        Points of the neighbours of every cell, and last itself; and whether there is one.
    """

    points: Points
    e: Float[Tensor, "u e"]
    A: Float[Tensor, "u m"]
    mean: Float[Tensor, " u"]
    slope: Float[Tensor, "u h"]
    cells: Int[Tensor, " n"]
    at: Int[Tensor, "b k"]
    seen: Bool[Tensor, "b k"]

    @property
    def group(self) -> Points:
        """The points by cell."""
        return self.points[self.at,]

    @property
    def rows(self) -> Float[Tensor, "b k m"]:
        """The rows A by cell, zero where there is none."""
        return self.A[self.at] * self.seen.unsqueeze(-1)

    def covariance(self, values: Float[Tensor, "b k k"]) -> Float[Tensor, "b k k"]:
        """A covariance by cell, zero where there is no neighbour."""
        return torch.where(self.seen.unsqueeze(-1) & self.seen.unsqueeze(-2), values, 0.0)


class NeighborPredictor:
    """Mean and variance of any cells given q(v) and the observed cells around them.

    Latent vectors are at their means; what is unknown of them enters through the slopes of the mean.

    Parameters
    ----------
    model
        A trained model with observed cells.
    num_neighbors
        Number of neighbours.
    has_noise
        Whether terms that belong to observations are part of what is predicted.
    """

    def __init__(self, model: "TransformedLatentModel", num_neighbors: int, has_noise: bool):
        self.model, self.k, self.has_noise = model, num_neighbors, has_noise
        # A width for which a chunk of cells takes some seconds.
        self.q, self.width = model.gp.posterior.moments(), 4
        assert model.observed is not None
        self.cells, self.h = model.observed, model.latents.mean.detach()
        self.places = self._at(self.cells.inputs[:1], torch.arange(len(self.h), device=self.h.device))[1]
        self.search = CellSearch(
            self.inputs_at(self.cells.inputs),
            self.places[: int(self.cells.output.max()) + 1],
            self.cells.row.cpu().numpy().astype(np.int64),
            self.cells.output.cpu().numpy().astype(np.int64),
            self.cells.num_shared,
        )
        self._known = KnownInputs(self.cells.inputs)
        # Noise variances of all observed cells.
        self.cell_noise = model.noise_of(self.cells.output.long(), self.cells.row.long(), self.cells.noise).detach()
        with torch.no_grad():
            self._Linv = model.gp.whitening()
            self._alpha = self._Linv.T @ self.q.mean

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "1 b"], Float[Tensor, "1 b"]]:
        """Means and variances of f and the terms at cells (x, outputs)."""
        mean, variance = x.new_empty(1, len(x)), x.new_empty(1, len(x))
        for which, found in self.parts(x, outputs):
            mean[0, which], variance[0, which] = found.mean, found.variance
        return mean, variance

    def parts(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"], blocks: list[CellBlock] | None = None
    ) -> Iterator[tuple[Tensor, Conditioned]]:
        """Cells (x, outputs) in parts: their numbers, and what is predicted; differentiable in x.

        Where there are tiles, their blocks go to a list, if there is one.
        """
        yield from TiledPredictor(self)(x, outputs, blocks) if self.has_tiles(x) else self.one_by_one(x, outputs)

    def has_tiles(self, x: Float[Tensor, "b d"]) -> bool:
        """Whether cells of a part have most of their neighbours in common."""
        # Cells that share no inputs have few; and a tile is little work for a GPU.
        return self.search.shares_inputs and x.device.type == "cpu" and not x.requires_grad

    def one_by_one(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> Iterator[tuple[Tensor, Conditioned]]:
        """The same with nothing shared between cells but embeddings of neighbours."""
        size = max(16, _CHUNK_NUMBERS // ((_CANDIDATES + _OWN + _HERE) * len(self.model.gp.Z)))
        for which in torch.arange(len(x), device=x.device).split(size):
            local = self.local(x[which], outputs[which], torch.full_like(which, -1))
            mean, weight, d = self.weights(local)
            variance = self.known(local, weight) + d
            yield which, Conditioned(mean, variance, local.cells[local.at[:, :-1]], -weight[:, :-1, 0])

    def weights(self, local: Local) -> tuple[Float[Tensor, " b"], Float[Tensor, "b k 1"], Float[Tensor, " b"]]:
        """Means of cells, weights of their points in what is left of them, and its variance when v and h are known."""
        group, seen = local.group, local.seen
        S = local.covariance(self.residual(local) + self.model.terms.covariance(group, group))
        S_N, own = S[:, :-1, -1:], S[:, -1, -1]
        if not self.has_noise:
            S_N, own = self._without_noise(group, seen, S_N, own)
        b = torch.cholesky_solve(S_N, safe_cholesky(S[:, :-1, :-1] + torch.diag_embed(self.noise(local))))
        μ = local.mean[local.at[:, -1]] + (b.squeeze(-1) * self.misfit(local)).sum(-1)
        d = (own - (b * S_N).sum((-2, -1))).clamp(min=1e-12)
        # What is left of everything that neighbours tell about as well: weights 1 and −b
        weight = torch.cat([-b, torch.ones_like(b[:, :1])], 1) * seen.unsqueeze(-1)
        return μ, weight, d

    def local(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"], without: Int[Tensor, " b"]) -> Local:
        """Cells with their neighbours, but for the observed cells `without`; differentiable in x."""
        found = torch.as_tensor(self.candidates(x, outputs), device=x.device)
        found = torch.where(found == without.unsqueeze(-1), -1, found)
        # Cells that occur again and again are embedded once.
        cells, index = found.clamp(min=0).unique(return_inverse=True)
        both = self.points(cells, x, outputs)
        e, A, mean, slope = self.explained(both)
        n, at = len(cells), torch.arange(len(x), device=x.device).unsqueeze(-1)
        with torch.no_grad():
            near = self._nearest(both, self.cell_noise[cells], e, A, n + at, index, found >= 0)
        index, seen = index.gather(1, near), found.gather(1, near) >= 0
        # Neighbours first, the cell itself last.
        at, seen = torch.cat([index, n + at], 1), torch.cat([seen, torch.ones_like(seen[:, :1])], 1)
        return Local(both, e, A, mean, slope, cells, at, seen)

    def residual(self, local: Local) -> Float[Tensor, "b k k"]:
        """K − A Aᵀ by cell: what inducing points leave of f."""
        e, A = local.e[local.at], local.A[local.at]
        return cross_covariance(self.model.gp.kernel, e, e) - A @ A.mT

    def noise(self, local: Local) -> Float[Tensor, "b n"]:
        """Noise variances of the neighbours, 1 where there is none."""
        seen = local.seen[:, :-1]
        return self.cell_noise[local.cells[local.at[:, :-1]]] * seen + ~seen

    def misfit(self, local: Local) -> Float[Tensor, "b n"]:
        """What q(v) leaves of the values of neighbours, 0 where there is none."""
        at = local.at[:, :-1]
        y = self.cells.y[local.cells[at]] - local.mean[at]
        return torch.where(local.seen[:, :-1], y, 0.0)

    def known(self, local: Local, weight: Float[Tensor, "b k 1"]) -> Float[Tensor, " b"]:
        """Variance of weighted points that is due to q(v) and q(h)."""
        return self.known_by_inducing(local, weight) + self.known_by_latents(local, weight)

    def known_by_inducing(self, local: Local, weight: Float[Tensor, "b k 1"]) -> Float[Tensor, " b"]:
        """Variance of weighted points that is due to q(v)."""
        row = (weight * local.rows).sum(1)
        return ((row @ self.q.covariance) * row).sum(-1)

    def known_by_latents(self, local: Local, weight: Float[Tensor, "b k 1"]) -> Float[Tensor, " b"]:
        """Variance due to latent vectors: Σ_p |L_pᵀ Σᵢ wᵢ gᵢ|² over the outputs p of a group, gᵢ slopes of means."""
        latents, group = self.model.latents, local.group
        if latents.posterior == "point":
            return weight.new_zeros(len(weight))
        outputs, column = group.outputs.unique(return_inverse=True)
        L = latents.factor(outputs)
        v = torch.einsum("gch,gchj->gcj", weight * local.slope[local.at], L[column])
        return torch.where(group.has_output_of(group), v @ v.mT, 0.0).sum((-2, -1))

    def points(self, cells: Int[Tensor, " n"], x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> Points:
        """Some of the observed cells, and cells (x, outputs) behind them."""
        row, output = self.cells.row[cells].long(), self.cells.output[cells].long()
        given = Points(self.cells.inputs[row], output, row, self.h[output])
        asked = Points(x, outputs, self._rows(x), self.h[outputs])
        return Points(*(torch.cat(pair) for pair in zip(vars(given).values(), vars(asked).values(), strict=True)))

    def inputs_at(self, x: Float[Tensor, "b d"]) -> FloatArray:
        """Where inputs lie, in units of how far they reach."""
        return self._at(x, torch.zeros(0, dtype=torch.long, device=x.device))[0]

    def _at(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " p"]) -> tuple[FloatArray, FloatArray]:
        at_input, at_output = self.model.coordinates_of(x, outputs)
        return at_input.cpu().numpy(), at_output.cpu().numpy()

    def candidates(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> IntArray:
        """Numbers of observed cells that may be neighbours of cells (x, outputs), −1 for none, shape (b, c)."""
        near = min(_NEAR_OUTPUTS, self.cells.num_shared)
        inputs = -(-_CANDIDATES // near)
        which = outputs.cpu().numpy()
        at = self.places[which]
        return self.search.candidates(self.inputs_at(x), which, at, inputs, near, _OWN, _HERE)

    def _rows(self, x: Float[Tensor, "b d"]) -> Int[Tensor, " b"]:
        """Numbers of inputs that were observed; others have negative ones of their own."""
        row = self._known.find(x)
        new = x.detach().unique(dim=0, return_inverse=True)[1]
        return torch.where(row >= 0, row, -1 - new)

    def explained(self, points: Points) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embeddings, rows A, means a·m with those of terms, and slopes of these in h; with a graph if x has one."""
        model = self.model
        if points.x.requires_grad:
            with torch.enable_grad():
                h = points.h.detach().requires_grad_()
                e = model.embed(points.x, h)
                A = model.explained(e, plain=True)
                mean = A @ self.q.mean
                slope = torch.autograd.grad(mean.sum(), h, create_graph=True)[0]
        else:
            e, slope = points.h.new_empty(len(points.x), model.gp.Z.shape[1]), torch.empty_like(points.h)
            A, mean = e.new_empty(len(e), len(model.gp.Z)), e.new_empty(len(e))
            for start in range(0, len(e), _EXPLAINED_ROWS):
                rows = slice(start, start + _EXPLAINED_ROWS)
                with torch.enable_grad():
                    h = points.h[rows].detach().requires_grad_()
                    part = model.embed(points.x[rows], h)
                    # A m = K L⁻ᵀ m, of which the right-hand side is quicker to differentiate
                    K = cross_covariance(model.gp.kernel, part, model.gp.Z)
                    slope[rows] = torch.autograd.grad((K @ self._alpha).sum(), h)[0]
                e[rows], _ = part.detach(), projected(K.detach(), self._Linv, A[rows])
                mean[rows] = A[rows] @ self.q.mean
        return e, A, mean + model.terms.mean(points), slope + model.terms.slope(points)

    def _nearest(
        self, both: Points, noise: Tensor, e: Tensor, A: Tensor, at: Tensor, index: Tensor, seen: Tensor
    ) -> Tensor:
        """Places among the candidates, the first points, that are most correlated with a cell under S."""
        k = min(self.k, index.shape[1])
        if k == index.shape[1]:
            return torch.arange(k, device=e.device).expand(len(index), -1)
        one, others = both[at,], both[index,]
        S = self._cross(one, others, e[at], e[index], A[at], A[index]).squeeze(1)
        own = kernel_diagonal(self.model.gp.kernel, e) - A.square().sum(-1) + self.model.terms.variance(both)
        share = S.square() / (own[: len(noise)] + noise)[index]
        return torch.where(seen, share, -1.0).topk(k, dim=1).indices

    def _cross(self, a: Points, b: Points, ea: Tensor, eb: Tensor, Aa: Tensor, Ab: Tensor) -> Tensor:
        return cross_covariance(self.model.gp.kernel, ea, eb) - Aa @ Ab.mT + self.model.terms.covariance(a, b)

    def _without_noise(self, group: Points, seen: Tensor, S_N: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Covariances of the function itself, without terms that belong to observations."""
        cell, others = group[:, -1:], group[:, :-1]
        for term in self.model.terms:
            if term.is_noise:
                S_N = S_N - torch.where(seen[:, :-1].unsqueeze(-1), term.covariance(others, cell), 0.0)
                own = own - term.variance(cell).squeeze(-1)
        return S_N, own
