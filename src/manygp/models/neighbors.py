"""Predictions from two scales: inducing points, and the observed cells around what is predicted.

With N the neighbours of a cell, S = R − A Aᵀ the covariance that inducing points leave, and q(v) = N(m, V),

    b = S_NN⁻¹ S_N*,   ã = a* − Σⱼ bⱼ aⱼ,   d = S_** − bᵀ S_N*
    mean = a*ᵀm + bᵀ (y_N − A_N m),   variance = ãᵀ V ã + d
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.data.search import CellSearch
from manygp.data.table import IntArray
from manygp.kernels import cross_covariance, is_fused, kernel_diagonal
from manygp.linalg import safe_cholesky
from manygp.terms import Points
from manygp.variational.known_inputs import KnownInputs

if TYPE_CHECKING:
    from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["NeighborPredictor", "ObservedCells"]

# Candidates for the neighbours of a cell: cells of outputs that are near, so many in all, and of the output itself.
_CANDIDATES, _NEAR_OUTPUTS, _OWN = 96, 16, 16
# Numbers of rows A of neighbours that are held at a time.
_CHUNK_NUMBERS = 6_000_000


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
    """

    inputs: Tensor
    row: Tensor
    output: Tensor
    y: Tensor

    def __init__(self, num_inputs: int, num_features: int, num_cells: int):
        super().__init__()
        self.register_buffer("inputs", torch.zeros(num_inputs, num_features, dtype=torch.float64))
        for name in ("row", "output"):
            self.register_buffer(name, torch.zeros(num_cells, dtype=torch.int32))
        self.register_buffer("y", torch.zeros(num_cells, dtype=torch.float64))

    @classmethod
    def of(cls, inputs: Tensor, row: Tensor, output: Tensor, y: Tensor) -> "ObservedCells":
        """Cells as they are told."""
        num_inputs, num_features = inputs.shape
        cells = cls(num_inputs, num_features, len(y))
        for name, values in {"inputs": inputs, "row": row, "output": output, "y": y}.items():
            getattr(cells, name).copy_(values)
        return cells


@dataclass(frozen=True)
class Local:
    """Cells that are asked about, each with its neighbours.

    Parameters
    ----------
    points
        Observed cells that are a neighbour of any, and the cells that are asked about behind them, u in all.
    e, A, slope
        Embeddings, rows of what inducing points explain, and slopes of means in h, of all points.
    cells
        Numbers of the observed cells.
    at, weight
        Points of the neighbours of every cell, and last itself; weights −b, 0 for none, and 1: what is left of the cell
        is the sum of what is left of the points with these weights.
    group
        The points by cell.
    mean, left
        Mean, and variance that is left when v and h are known.
    """

    points: Points
    e: Float[Tensor, "u e"]
    A: Float[Tensor, "u m"]
    slope: Float[Tensor, "u h"]
    cells: Int[Tensor, " n"]
    at: Int[Tensor, "b k"]
    weight: Float[Tensor, "b k"]
    group: Points
    mean: Float[Tensor, " b"]
    left: Float[Tensor, " b"]


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
        self.q, self.width = model.gp.posterior.moments(), 1
        assert model.observed is not None
        self.cells, units = model.observed, model.units.cpu().numpy()
        d, scale = self.cells.inputs.shape[1], np.ones(len(units))
        if is_fused(model.gp.kernel) and model.gp.Z.shape[1] == len(units):
            scale = model.gp.kernel.base_kernel.lengthscale.detach().cpu().numpy().reshape(-1)
        self._x_unit, self._h_unit = (units * scale)[:d], (units * scale)[d:]
        self.h = model.latents.mean.detach()
        inputs, num_known = self.cells.inputs.cpu().numpy(), int(self.cells.output.max()) + 1
        self.search = CellSearch(
            inputs / self._x_unit,
            self.h[:num_known].cpu().numpy() / self._h_unit,
            self.cells.row.cpu().numpy().astype(np.int64),
            self.cells.output.cpu().numpy().astype(np.int64),
        )
        self._known = KnownInputs(self.cells.inputs)

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "1 b"], Float[Tensor, "1 b"]]:
        """Means and variances of f and the terms at cells (x, outputs)."""
        mean, known, left = self._parts(x, outputs, torch.full_like(outputs, -1))
        return mean.unsqueeze(0), (known + left).unsqueeze(0)

    @torch.no_grad()
    def without(self, cells: Int[Tensor, " b"]) -> tuple[Tensor, Tensor, Tensor]:
        """What neighbours say about observed cells: means, variances due to q(v) and q(h), and other variances."""
        row, output = self.cells.row[cells].long(), self.cells.output[cells].long()
        return self._parts(self.cells.inputs[row], output, cells)

    def _parts(self, x: Tensor, outputs: Tensor, without: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = max(16, _CHUNK_NUMBERS // ((_CANDIDATES + _OWN) * len(self.model.gp.Z)))
        parts = [
            self._some(*chunk) for chunk in zip(*(part.split(size) for part in (x, outputs, without)), strict=True)
        ]
        mean, known, left = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, known, left

    def _some(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"], without: Int[Tensor, " b"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        local, q = self.local(x, outputs, without), self.q
        # What is left of everything that neighbours tell about as well: weights 1 and −b
        weight = local.weight.unsqueeze(-1)
        row = (weight * local.A[local.at]).sum(1)
        known = ((row @ q.covariance) * row).sum(-1) + self._of_latents(local.group, local.slope[local.at], weight)
        return local.mean, known, local.left

    def local(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"], without: Int[Tensor, " b"]) -> "Local":
        """Cells with their neighbours, but for the observed cells `without`; differentiable in x."""
        model = self.model
        found = torch.as_tensor(self._candidates(x, outputs), device=x.device)
        found = torch.where(found == without.unsqueeze(-1), -1, found)
        # Cells that occur again and again are embedded once.
        cells, index = found.clamp(min=0).unique(return_inverse=True)
        row, output = self.cells.row[cells].long(), self.cells.output[cells].long()
        given = Points(self.cells.inputs[row], output, row, self.h[output])
        asked = Points(x, outputs, self._rows(x), self.h[outputs])
        both = Points(*(torch.cat(pair) for pair in zip(vars(given).values(), vars(asked).values(), strict=True)))
        e, A, mean, slope = self._explained(both)
        n, at = len(cells), torch.arange(len(x), device=x.device).unsqueeze(-1)
        with torch.no_grad():
            near = self._nearest(both, e, A, n + at, index, found >= 0)
        index, seen = index.gather(1, near), found.gather(1, near) >= 0
        # Neighbours first, the cell itself last.
        at, seen = torch.cat([index, n + at], 1), torch.cat([seen, torch.ones_like(seen[:, :1])], 1)
        group, A_group = both[at,], A[at] * seen.unsqueeze(-1)
        S = self._residual(group, e[at], A_group, seen)
        noise = model.noise_of(group.outputs[:, :-1]) * seen[:, :-1] + (~seen[:, :-1])
        S_NN, S_N, own = S[:, :-1, :-1] + torch.diag_embed(noise), S[:, :-1, -1:], S[:, -1, -1]
        if not self.has_noise:
            S_N, own = self._without_noise(group, seen, S_N, own)
        L = safe_cholesky(S_NN)
        b = torch.cholesky_solve(S_N, L)
        y = torch.where(seen[:, :-1], self.cells.y[cells[index]] - mean[index], 0.0)
        μ = mean[at[:, -1]] + (b.squeeze(-1) * y).sum(-1)
        d = (own - (b * S_N).sum((-2, -1))).clamp(min=1e-12)
        weight = torch.cat([-b.squeeze(-1), torch.ones_like(b[:, 0])], 1) * seen
        return Local(both, e, A, slope, cells, at, weight, group, μ, d)

    def _candidates(self, x: Tensor, outputs: Tensor) -> IntArray:
        h = self.h[outputs].cpu().numpy() / self._h_unit
        near = min(_NEAR_OUTPUTS, len(self.search.h))
        inputs = -(-_CANDIDATES // near)
        which = outputs.cpu().numpy()
        return self.search.candidates(x.detach().cpu().numpy() / self._x_unit, which, h, inputs, near, _OWN)

    def _rows(self, x: Float[Tensor, "b d"]) -> Int[Tensor, " b"]:
        """Numbers of inputs that were observed; others have negative ones of their own."""
        row = self._known.find(x)
        new = x.detach().unique(dim=0, return_inverse=True)[1]
        return torch.where(row >= 0, row, -1 - new)

    def _explained(self, points: Points) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embeddings, rows A, means a·m with those of terms, and slopes of these in h; with a graph if x has one."""
        model, keep = self.model, points.x.requires_grad
        with torch.enable_grad():
            h = points.h.detach().requires_grad_()
            e = model.embed(points.x, h)
            A = model.explained(e, keep)
            mean = A @ self.q.mean
            slope = torch.autograd.grad(mean.sum(), h, create_graph=keep)[0]
        parts = e, A, mean, slope
        e, A, mean, slope = parts if keep else tuple(part.detach() for part in parts)
        return e, A, mean + model.terms.mean(points), slope + model.terms.slope(points)

    def _nearest(self, both: Points, e: Tensor, A: Tensor, at: Tensor, index: Tensor, seen: Tensor) -> Tensor:
        """Places among the candidates that are most correlated with a cell under S."""
        k = min(self.k, index.shape[1])
        if k == index.shape[1]:
            return torch.arange(k, device=e.device).expand(len(index), -1)
        one, others = both[at,], both[index,]
        S = self._cross(one, others, e[at], e[index], A[at], A[index]).squeeze(1)
        own = kernel_diagonal(self.model.gp.kernel, e) - A.square().sum(-1) + self.model.noise_of(both.outputs)
        own = own + self.model.terms.variance(both)
        share = S.square() / own[index]
        return torch.where(seen, share, -1.0).topk(k, dim=1).indices

    def _cross(self, a: Points, b: Points, ea: Tensor, eb: Tensor, Aa: Tensor, Ab: Tensor) -> Tensor:
        return cross_covariance(self.model.gp.kernel, ea, eb) - Aa @ Ab.mT + self.model.terms.covariance(a, b)

    def _residual(self, group: Points, e: Tensor, A: Tensor, seen: Tensor) -> Tensor:
        S = self._cross(group, group, e, e, A, A)
        return torch.where(seen.unsqueeze(-1) & seen.unsqueeze(-2), S, 0.0)

    def _without_noise(self, group: Points, seen: Tensor, S_N: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Covariances of the function itself, without terms that belong to observations."""
        cell, others = group[:, -1:], group[:, :-1]
        for term in self.model.terms:
            if term.is_noise:
                S_N = S_N - torch.where(seen[:, :-1].unsqueeze(-1), term.covariance(others, cell), 0.0)
                own = own - term.variance(cell).squeeze(-1)
        return S_N, own

    def _of_latents(self, group: Points, slope: Tensor, weight: Tensor) -> Float[Tensor, " b"]:
        """Variance due to latent vectors: Σ_p |L_pᵀ Σᵢ wᵢ gᵢ|² over the outputs p of a group, gᵢ slopes of means."""
        latents = self.model.latents
        if latents.posterior == "point":
            return weight.new_zeros(len(weight))
        outputs, column = group.outputs.unique(return_inverse=True)
        L = latents.factor(outputs)
        v = torch.einsum("gch,gchj->gcj", weight * slope, L[column])
        return torch.where(group.has_output_of(group), v @ v.mT, 0.0).sum((-2, -1))
