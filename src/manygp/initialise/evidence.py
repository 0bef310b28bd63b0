"""Lengthscales by evidence: what a few outputs, each an exact GP of its own, say about the inputs."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize
from scipy.spatial import cKDTree
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.data.table import FloatArray
from manygp.errors import NumericalError
from manygp.linalg import safe_cholesky

__all__ = ["Lengthscales", "OutputSample", "evidence_lengthscales", "near_and_far"]

# Lengthscales in standard deviations of the inputs, from far below to far above.
_GRID = tuple(2.0**k for k in range(-6, 4))
# Signals and noises that are tried with each, and one that is as good as white.
_STARTS, _WHITE = ((1.0, 0.01), (1.0, 0.1), (1.0, 0.5)), (0.1, 0.9)
# Cells of an output at most, outputs at least and at most, and cells in all: of outputs with few cells, more are asked.
_MAX_POINTS, _OUTPUTS, _CELLS = 112, (12, 200), 700
# The grid is tried on fewer.
_GRID_POINTS, _GRID_OUTPUTS = 64, 8
# Steps of the search, and the relative gain that ends it.
_MAX_STEPS, _SETTLED = 25, 1e-5
# Log parameters stay within so much of where the search begins.
_FARTHEST = 8.0
# The shortest lengthscale, in distances between neighbours, and how many are looked at.
_SHORTEST, _MAX_QUERIES = 1.0 / 3.0, 1000
# The least noise variance, of scaled outputs.
_LEAST_NOISE = 1e-6
# Signal and noise where nothing tells them.
_UNKNOWN = (1.0, 0.1)


@dataclass(frozen=True)
class Lengthscales:
    """A lengthscale per input dimension (d,), signal variance and noise variance, in scaled units."""

    lengthscale: FloatArray
    signal: float
    noise: float

    def num_pieces(self, x: Float[np.ndarray, "n d"]) -> float:
        """About how many independent pieces a function has over scaled inputs, no more than there are inputs.

        With lengthscale ℓ over a range r there are about r / ℓ along an input, and those of all inputs multiply.
        """
        return float(np.minimum(np.prod(1.0 + 2.0 * np.ptp(x, axis=0) / self.lengthscale), len(x)))


def evidence_lengthscales(
    table: Table, scaling: Scaling, rng: np.random.Generator, max_noise: float = math.inf, tolerance: float = 0.0
) -> Lengthscales:
    """Shared ARD lengthscales that maximise the exact evidence of a few outputs, see `OutputSample`."""
    return OutputSample.of(table, scaling, rng).lengthscales(max_noise, tolerance)


@dataclass(frozen=True)
class OutputSample:
    """Some cells of a few outputs in scaled units, padded: x (p, n, d), y (p, n), and which are cells (p, n).

    Every output contributes neighbours of a random cell, so that short lengthscales show, and as many cells from
    anywhere. `inputs` are those of the whole table, (n, d).
    """

    x: Float[Tensor, "p n d"]
    y: Float[Tensor, "p n"]
    seen: Bool[Tensor, "p n"]
    inputs: FloatArray

    @classmethod
    def of(cls, table: Table, scaling: Scaling, rng: np.random.Generator) -> "OutputSample":
        """Well observed outputs, which say more, and some cells of each."""
        counts = table.count_per_output()
        usable = np.flatnonzero(counts >= min(3, counts.max()))
        order = usable[np.argsort(-counts[usable] * rng.uniform(0.5, 1.0, len(usable)))]
        many = int(np.clip(_CELLS // max(1, min(int(np.median(counts[usable])), _MAX_POINTS)), *_OUTPUTS))
        parts = []
        for p in order[:many]:
            row, y = table.column(int(p))
            x, y = scaling.scale_x(table.X[row]), scaling.scale_y(y, np.full(len(y), p))
            if len(y) > _MAX_POINTS:
                kept = near_and_far(x, _MAX_POINTS, rng)
                x, y = x[kept], y[kept]
            parts.append((x, y - y.mean()))
        return cls(*_padded(parts), scaling.scale_x(table.X))

    def lengthscales(self, max_noise: float = math.inf, tolerance: float = 0.0) -> Lengthscales:
        """Lengthscales, signal and noise that maximise the evidence, the same for all outputs.

        A coarse grid over one common lengthscale, then L-BFGS on all of them. Neighbours are not farther than three
        lengthscales apart: there, all functions are white, whatever the lengthscales.

        `max_noise` is an upper bound of the noise variance that is known from elsewhere: without it, jumps that all
        outputs share pass for noise of each. With a `tolerance`, in nats a cell, the search begins at the longest
        lengthscale that is as good as any within it: what may as well be noise is taken for noise.
        """
        if int(self.seen.sum(-1).max()) < 2:
            # An output with one cell says nothing of its own function.
            return Lengthscales(np.ones(self.x.shape[-1]), *_UNKNOWN)
        # Constant data have no noise at all, and no logarithm of it.
        max_noise, d = max(max_noise, _LEAST_NOISE), self.x.shape[-1]
        # Small differences take all cells to tell.
        few, values = self if tolerance else self._thinned(), dict[float, tuple[float, FloatArray]]()
        tried = [(s, min(n, max_noise)) for s, n in ((*_STARTS, _WHITE) if tolerance else _STARTS)]
        for factor in _GRID:
            lengthscale = np.full(d, factor * math.sqrt(d))
            losses = few._negative_evidences(lengthscale, np.array(tried))
            best = int(losses.argmin())
            if math.isfinite(losses[best]):
                values[factor] = float(losses[best]), np.log([*lengthscale, *tried[best]])
        if not values:
            return Lengthscales(np.ones(d), *_UNKNOWN)
        least = min(value for value, _ in values.values()) + tolerance
        start = values[max(factor for factor, (value, _) in values.items() if value <= least)][1]
        final = self._climb(start, max_noise)
        lengthscale = np.exp(final[:d])
        lengthscale *= max(1.0, _SHORTEST * _spacing(self.inputs / lengthscale))
        return Lengthscales(lengthscale, float(np.exp(final[d])), min(float(np.exp(final[d + 1])), max_noise))

    def _climb(self, start: FloatArray, max_noise: float) -> FloatArray:
        def loss(raw: FloatArray) -> tuple[float, FloatArray]:
            value, gradient = self.negative_evidence(raw)
            # A weak pull to the start keeps lengthscales of inputs that do not matter from running away.
            return value + 1e-3 * float(np.square(raw - start).sum()), gradient + 2e-3 * (raw - start)

        highest = start + _FARTHEST
        highest[-1] = math.log(max_noise) if max_noise < math.inf else highest[-1]
        bounds = np.column_stack([start - _FARTHEST, highest])
        options = {"maxiter": _MAX_STEPS, "ftol": _SETTLED}
        try:
            found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        except NumericalError:
            return start
        return np.asarray(found.x) if np.isfinite(found.x).all() else start

    @torch.no_grad()
    def negative_evidence(self, raw: FloatArray) -> tuple[float, FloatArray]:
        """Mean negative log evidence per cell, and its gradient, by logarithms of lengthscales, signal and noise."""
        d, cells, own = self.x.shape[-1], self.seen.sum(), self.seen.double()
        noise, z = math.exp(raw[d + 1]), self.x / torch.as_tensor(np.exp(raw[:d]))
        K = self._correlations(z).mul_(math.exp(raw[d]))
        # Padding has unit variance and value zero: a constant.
        L = safe_cholesky(K + torch.diag_embed(own * (noise + _LEAST_NOISE) + (1.0 - own)))
        inverse = torch.cholesky_inverse(L)
        α = (inverse @ self.y.unsqueeze(-1)).squeeze(-1)
        value = (0.5 * (α * self.y).sum() + L.diagonal(dim1=-2, dim2=-1).log().sum()) / cells
        # ∂/∂K = ½ (K⁻¹ − ααᵀ);  ∂k/∂log ℓ = k (z − z')²;  Σ_ij G_ij (z_i − z_j)² = 2 Σ_i z_i (z_i Σ_j G_ij − (G z)_i)
        W = inverse - α.unsqueeze(-1) * α.unsqueeze(-2)
        of_noise = noise * (own * W.diagonal(dim1=-2, dim2=-1)).sum()
        G = W.mul_(K)
        along = 2.0 * (z * (z * G.sum(-1, keepdim=True) - G @ z)).sum((0, 1))
        gradient = 0.5 * torch.cat([along, torch.stack([G.sum(), of_noise])]) / cells
        return float(value), gradient.numpy()

    @torch.no_grad()
    def _negative_evidences(self, lengthscale: FloatArray, scales: FloatArray) -> FloatArray:
        """The same without gradient for some pairs of signal and noise (k, 2) with one lengthscale."""
        own, tried = self.seen.double(), torch.as_tensor(scales)[:, :, None, None]
        noise = own * (tried[:, 1] + _LEAST_NOISE) + (1.0 - own)
        K = tried[:, :1] * self._correlations(self.x / torch.as_tensor(lengthscale)) + torch.diag_embed(noise)
        L = safe_cholesky(K)
        a = torch.linalg.solve_triangular(L, self.y.unsqueeze(-1).expand(*L.shape[:-1], 1), upper=False)
        loss = 0.5 * a.square().sum((1, 2, 3)) + L.diagonal(dim1=-2, dim2=-1).log().sum((1, 2))
        return (loss / self.seen.sum()).numpy()

    def covariance(self, found: Lengthscales) -> Float[Tensor, "p n n"]:
        """Of observations, with parameters that were found; the identity where there are no cells."""
        own, z = self.seen.double(), self.x / torch.as_tensor(found.lengthscale)
        noise = own * (found.noise + _LEAST_NOISE) + (1.0 - own)
        return found.signal * self._correlations(z) + torch.diag_embed(noise)

    def _correlations(self, z: Float[Tensor, "p n d"]) -> Float[Tensor, "p n n"]:
        own = self.seen.double()
        s = torch.cdist(z, z, compute_mode="use_mm_for_euclid_dist").square_()
        return s.mul_(-0.5).exp_().mul_(own.unsqueeze(-1) * own.unsqueeze(-2))

    def _thinned(self) -> "OutputSample":
        """Some of the outputs and cells: neighbours stay neighbours."""
        x, y, seen = self.x[:_GRID_OUTPUTS], self.y[:_GRID_OUTPUTS], self.seen[:_GRID_OUTPUTS]
        parts = []
        for p in range(len(x)):
            own, values = x[p][seen[p]].numpy(), y[p][seen[p]].numpy()
            kept = near_and_far(own, _GRID_POINTS, np.random.default_rng(p))
            parts.append((own[kept], values[kept] - values[kept].mean()))
        return OutputSample(*_padded(parts), self.inputs)


def near_and_far(x: FloatArray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Neighbours of a random input, so that short lengthscales show, and as many inputs from anywhere."""
    if len(x) <= size:
        return np.arange(len(x))
    near = np.argsort(((x - x[rng.integers(len(x))]) ** 2).sum(1))[: size // 2]
    far = rng.choice(len(x), size // 2, replace=False)
    return np.unique(np.concatenate([near, far]))


def _padded(parts: list[tuple[FloatArray, FloatArray]]) -> tuple[Tensor, Tensor, Tensor]:
    n, d = max(len(y) for _, y in parts), parts[0][0].shape[1]
    X, Y, seen = np.zeros((len(parts), n, d)), np.zeros((len(parts), n)), np.zeros((len(parts), n), bool)
    for i, (x, y) in enumerate(parts):
        X[i, : len(y)], Y[i, : len(y)], seen[i, : len(y)] = x, y, True
    return torch.as_tensor(X), torch.as_tensor(Y), torch.as_tensor(seen)


def _spacing(x: FloatArray) -> float:
    """Median distance of an input to the nearest one that is not the same."""
    x = np.unique(x, axis=0)
    if len(x) < 2:
        return 0.0
    return float(np.median(cKDTree(x).query(x[:: 1 + len(x) // _MAX_QUERIES], k=2)[0][:, 1]))
