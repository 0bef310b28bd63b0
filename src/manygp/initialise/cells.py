"""Low-rank factorisation of a list of cells: outputs mix a few smooth functions, each seen at inputs of its own.

    y_i = φ(x_i)ᵀ (a₀ + Σ_r a_r w_pr) + ε,   a_r ~ N(0, τ_r² I),   w_p ~ N(0, I),   ε ~ N(0, σ²)

with p the output of cell i and φ the Nyström features of an RBF kernel, |φ(x)|² ≈ 1, so that every φᵀa_r is a draw of a
GP. q(A) and q(W) take turns (variational Bayes), τ and σ follow. On a grid a factorisation needs no smoothness, since
outputs share rows; here smoothness is all that outputs share.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from manygp.data import Scaling, Table
from manygp.data.factorisation import Factorisation, canonical
from manygp.data.table import FloatArray, IntArray

__all__ = ["CellStatistics", "Mixture", "RadialFeatures"]

# Features at most, candidates for the points they are made of, and the variance that is not worth another.
_MOST_FEATURES, _CANDIDATES, _LEFT = 100, 1000, 1e-3
# Cells of an output that functions are learnt from.
_CELLS_PER_OUTPUT = 300
# The noise to begin with as a share of the variance, the least, and the least power of a function.
_FIRST_NOISE, _LEAST_NOISE, _WEAKEST = 0.3, 1e-4, 1e-8
# Relative jitter of covariances among points, and rows of features that are held at a time.
_JITTER, _CHUNK = 1e-8, 50_000


class RadialFeatures:
    """Nyström features of an RBF kernel with unit variance.

    Parameters
    ----------
    x
        Inputs to cover, shape (c, d).
    lengthscale
        One for each input dimension, shape (d,).
    rng
        Source of randomness.
    """

    def __init__(self, x: FloatArray, lengthscale: FloatArray, rng: np.random.Generator):
        self.lengthscale = lengthscale
        chosen = rng.choice(len(x), min(len(x), _CANDIDATES), replace=False)
        self.Z = _spread_points(x[chosen] / lengthscale, min(_MOST_FEATURES, len(chosen)))
        K = _rbf(self.Z, self.Z)
        self.L = np.linalg.cholesky(K + _JITTER * len(K) * np.eye(len(K)))

    def __call__(self, x: FloatArray) -> FloatArray:
        """φ(x) = L⁻¹ k(Z, x) of some inputs, shape (c, m)."""
        return solve_triangular(self.L, _rbf(self.Z, x / self.lengthscale), lower=True).T

    def combine(self, x: FloatArray, A: FloatArray) -> FloatArray:
        """φ(x)ᵀ A of some inputs, a chunk at a time, shape (c, k) for A (m, k)."""
        parts = [self(x[begin : begin + _CHUNK]) @ A for begin in range(0, len(x), _CHUNK)]
        return np.concatenate(parts)


def _rbf(a: FloatArray, b: FloatArray) -> FloatArray:
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2.0 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(squared, 0.0)))


def _spread_points(x: FloatArray, most: int) -> FloatArray:
    """Points by a pivoted Cholesky factorisation, until next to no variance is left anywhere."""
    left, rows, chosen = np.ones(len(x)), np.zeros((most, len(x))), list[int]()
    for i in range(most):
        pivot = int(left.argmax())
        if left[pivot] < _LEFT:
            break
        chosen.append(pivot)
        rows[i] = (_rbf(x[pivot : pivot + 1], x)[0] - rows[:i, pivot] @ rows[:i]) / np.sqrt(left[pivot])
        left = np.maximum(left - rows[i] ** 2, 0.0)
    return x[chosen]


@dataclass(frozen=True, eq=False)
class CellStatistics:
    """Σ φφᵀ, Σ φy and Σ y² over the cells of every output, (p, m, m), (p, m) and (p,), and their number (p,)."""

    gram: FloatArray
    cross: FloatArray
    squares: FloatArray
    counts: FloatArray

    @classmethod
    def of(cls, table: Table, scaling: Scaling, features: RadialFeatures, outputs: IntArray) -> "CellStatistics":
        """Of some outputs, from a bounded number of cells each."""
        row, output, y = table.cells(table.places())
        order = np.argsort(output, kind="stable")
        begins = np.searchsorted(output[order], np.arange(table.num_outputs + 1))
        m = len(features.Z)
        gram, cross = np.zeros((len(outputs), m, m)), np.zeros((len(outputs), m))
        squares, counts = np.zeros(len(outputs)), np.zeros(len(outputs))
        for i, p in enumerate(outputs):
            own = order[begins[p] : begins[p + 1]]
            if len(own) > _CELLS_PER_OUTPUT:
                own = own[np.linspace(0, len(own) - 1, _CELLS_PER_OUTPUT).astype(int)]
            phi, values = features(table.X[row[own]]), scaling.scale_y(y[own], output[own])
            gram[i], cross[i], squares[i], counts[i] = phi.T @ phi, phi.T @ values, values @ values, len(own)
        return cls(gram, cross, squares, counts)


class Mixture:
    """q(A) and q(W) of so many functions, beginning with principal components of the outputs' own smooths.

    Parameters
    ----------
    data
        Statistics of the outputs that functions are learnt from.
    rank
        Number r of functions beside the one that all outputs share.
    """

    def __init__(self, data: CellStatistics, rank: int):
        p, m = data.cross.shape
        self.data, self.rank, self.total = data, rank, max(float(data.counts.sum()), 1.0)
        self.noise = max(_FIRST_NOISE * float(data.squares.sum()) / self.total, _LEAST_NOISE)
        eye = np.eye(m)
        shared = np.linalg.solve(data.gram.sum(0) / self.noise + eye, data.cross.sum(0) / self.noise)
        # Each output by itself, less what all share: (G_p / σ² + I)⁻¹ (Φᵀ(y − Φ a₀)) / σ²
        rest = data.cross - data.gram @ shared
        own = np.linalg.solve(data.gram + self.noise * eye, rest[:, :, None])[:, :, 0]
        left, size, _ = np.linalg.svd(own.T, full_matrices=False)
        kept = min(rank, len(size))
        self.A = np.zeros((m, rank + 1))
        self.A[:, 0] = shared
        self.A[:, 1 : kept + 1] = left[:, :kept] * size[:kept] / np.sqrt(p)
        self.A_cov = np.zeros((rank + 1, m, rank + 1, m))
        self.power = np.full(rank + 1, 1.0)
        self.update_loadings()

    def fit(self, max_steps: int, tolerance: float) -> "Mixture":
        """Take turns until the noise settles."""
        for _ in range(max_steps):
            before = self.noise
            self._update_functions()
            self._update_noise()
            self.update_loadings()
            if abs(np.log(self.noise / before)) < tolerance:
                break
        return self

    def update_loadings(self) -> None:
        """q(w_p) given q(A), turned so that their second moment over outputs is I."""
        k, r = self.rank + 1, self.rank
        self.W, self.W_cov = loadings(self._second_moments(self.data.gram), self.data.cross @ self.A, self.noise)
        moment = (self.W.T @ self.W + self.W_cov.sum(0)) / len(self.W)
        root = np.linalg.cholesky(moment + _WEAKEST * max(np.trace(moment), _WEAKEST) * np.eye(r))
        back = np.linalg.inv(root)
        self.W, self.W_cov = self.W @ back.T, back @ self.W_cov @ back.T
        turn = np.eye(k)
        turn[1:, 1:] = root
        self.A = self.A @ turn
        self.A_cov = np.einsum("jamb,jk,ml->kalb", self.A_cov, turn, turn, optimize=True)

    def _second_moments(self, gram: FloatArray) -> FloatArray:
        """Σ_i E[g_i g_iᵀ] over the cells of every output, g_i = Aᵀ φ_i, shape (p, k, k)."""
        k, m = self.rank + 1, len(self.A)
        cov = self.A_cov.transpose(1, 3, 0, 2).reshape(m * m, k * k)
        return np.asarray(self.A.T @ gram @ self.A + (gram.reshape(-1, m * m) @ cov).reshape(-1, k, k))

    def _weights(self) -> tuple[FloatArray, FloatArray]:
        """E w̃ and E w̃w̃ᵀ of every output with w̃ = [1, w], shapes (p, k) and (p, k, k)."""
        mean = np.column_stack([np.ones(len(self.W)), self.W])
        second = mean[:, :, None] * mean[:, None, :]
        second[:, 1:, 1:] += self.W_cov
        return mean, second

    def _update_functions(self) -> None:
        """q(A) = N(·, (Σ_p E w̃w̃ᵀ ⊗ G_p / σ² + diag τ⁻² ⊗ I)⁻¹), and τ² the mean square of each function."""
        (p, m), k = self.data.cross.shape, self.rank + 1
        mean, second = self._weights()
        N = (second.reshape(p, -1).T @ self.data.gram.reshape(p, -1)).reshape(k, k, m, m).transpose(0, 2, 1, 3)
        N = N.reshape(k * m, k * m) / self.noise
        N[np.diag_indices(k * m)] += np.repeat(1.0 / self.power, m)
        factor = cho_factor(N, lower=True)
        a = cho_solve(factor, (mean.T @ self.data.cross).reshape(-1) / self.noise)
        cov = cho_solve(factor, np.eye(k * m))
        self.A, self.A_cov = a.reshape(k, m).T, cov.reshape(k, m, k, m)
        spread = np.square(self.A).sum(0) + np.einsum("jaja->j", self.A_cov)
        self.power = np.maximum(spread / m, _WEAKEST)

    def _update_noise(self) -> None:
        """σ²: mean of E(y − w̃ᵀ Aᵀφ)²."""
        mean, second = self._weights()
        fit = np.einsum("pk,pk->", mean, self.data.cross @ self.A)
        spread = np.einsum("pjk,pjk->", second, self._second_moments(self.data.gram))
        self.noise = max(float(self.data.squares.sum() - 2.0 * fit + spread) / self.total, _LEAST_NOISE)

    def factorisation(
        self,
        inputs: FloatArray,
        table: Table,
        scaling: Scaling,
        features: RadialFeatures,
        rank: int | None = None,
    ) -> Factorisation:
        """Functions at some inputs, and loadings of all outputs of a table by their cells; beyond `rank`, zeros."""
        rows = features.combine(inputs, self.A)
        there = rows if inputs is table.X else features.combine(table.X, self.A)
        W = self._loadings_of(table, scaling, there)
        return canonical(rows, W, rank or self.rank, table.count_per_output() > 0, self.noise)

    def _loadings_of(self, table: Table, scaling: Scaling, g: FloatArray) -> FloatArray:
        k = self.rank + 1
        second, cross = np.zeros((table.num_outputs, k * k)), np.zeros((table.num_outputs, k))
        for row, output, y in table.chunks():
            here, scaled = g[row], scaling.scale_y(y, output)
            outer = (here[:, :, None] * here[:, None, :]).reshape(len(row), -1)
            for total, values in ((second, outer), (cross, here * scaled[:, None])):
                for j in range(values.shape[1]):
                    total[:, j] += np.bincount(output, values[:, j], len(total))
        return loadings(second.reshape(-1, k, k), cross, self.noise)[0]


def loadings(second: FloatArray, cross: FloatArray, noise: float) -> tuple[FloatArray, FloatArray]:
    """q(w) = N((I + Σ gg ᵀ/σ²)⁻¹ Σ g (y − g₀)/σ², ·) from Σ g̃g̃ᵀ and Σ g̃ y of every output, with g̃ = [g₀, g]."""
    r = cross.shape[1] - 1
    covariance: FloatArray = np.asarray(np.linalg.inv(second[:, 1:, 1:] / noise + np.eye(r)), dtype=np.float64)
    mean = (covariance @ ((cross[:, 1:] - second[:, 1:, 0]) / noise)[:, :, None])[:, :, 0]
    return mean, covariance
