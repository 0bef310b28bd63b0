"""Bayesian low-rank factorisation of a matrix with gaps, by alternating least squares.

The model of an observed cell is y_np = b_n + uₙ·v_p + ε, ε ~ N(0, s²), with Gaussian priors on b, u and v whose
means and variances are estimated along with s². Each half-step is a ridge regression for all rows, or for all
outputs, at once; the ridge is the posterior precision, so nobody sets it.

Rows and outputs differ in number, often by orders of magnitude. The longer side is always integrated out (its
posterior covariances enter the other side's regression). The shorter side is first taken as a parameter, which
finds the directions, and then integrated out as well, which switches off those that the data do not support.
Doing the latter from the start would switch off directions before they had a chance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from manygp.data.table import FloatArray, IntArray

# Rows or outputs whose small systems are solved at once; bounds the memory of a half-step.
SOLVE_CHUNK = 20_000
# Prior precision of the shorter side while it is a parameter, as a share of that of its largest direction.
WEAK = 1e-3
# Relative change of the noise variance that ends the first phase; ended earlier, it loses small directions.
DIRECTIONS_SETTLED = 1e-3
# Smallest noise variance as a share of the variance of the data; keeps the systems well conditioned.
NOISE_FLOOR = 1e-6
# Power iterations that find directions to grow along.
GROWTH_STEPS = 2
# Steps of the first phase of a state that has grown.
GROWN_STEPS = 3


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of the data: values with 0 for gaps, and 1 where observed, both (rows, p)."""

    rows: slice
    values: FloatArray
    observed: FloatArray


@dataclass(eq=False)
class State:
    """The posterior of a factorisation of rank r, with k = r + 1 numbers a row (its mean first).

    Symmetric matrices are kept as their packed upper triangles, t numbers each for r and t + k for k.
    """

    u: FloatArray  # (n, k), b first
    u_cov: FloatArray  # (n, t + k)
    u_mean: FloatArray  # (k,), of the prior
    u_precision: FloatArray  # (k,), of the prior
    v: FloatArray  # (p, r)
    v_cov: FloatArray  # (p, t)
    v_precision: FloatArray  # (r,), of the prior, whose mean is 0
    noise: float
    variance: float
    wide: bool
    residual: float = 0.0  # what the factors leave, of which `most_noise` at most counts as noise
    most_noise: float = np.inf

    @property
    def rank(self) -> int:
        """Number of factors."""
        return int(self.v.shape[1])


def start(
    blocks: Iterable[Block], num_inputs: int, num_outputs: int, rank: int, wide: bool, rng: np.random.Generator
) -> State:
    """Return a random starting point with the data's own scale."""
    total = square = count = 0.0
    for block in blocks:
        total += float(block.values.sum())
        square += float((block.values**2).sum())
        count += float(block.observed.sum())
    mean = total / max(count, 1.0)
    variance = square / max(count, 1.0) - mean**2
    if variance <= 1e-10 * mean**2:
        # All values are the same: any scale does that is neither 0 nor far from theirs.
        variance = mean**2 or 1.0
    k, t = rank + 1, rank * (rank + 1) // 2
    return State(
        u=np.zeros((num_inputs, k)),
        u_cov=np.zeros((num_inputs, t + k)),
        u_mean=np.concatenate([[mean], np.zeros(rank)]),
        u_precision=np.full(k, 1.0 / variance),
        v=rng.standard_normal((num_outputs, rank)),
        v_cov=np.zeros((num_outputs, t)),
        v_precision=np.ones(rank),
        noise=0.5 * variance,
        variance=variance,
        wide=wide,
    )


def grow(state: State, blocks: Iterable[Block], rank: int, rng: np.random.Generator) -> State:
    """Return a state of higher rank, with directions along which what is left of the data varies most."""
    more, p = rank - state.rank, len(state.v)
    fit = np.hstack([np.ones((p, 1)), state.v])
    added = rng.standard_normal((p, more))
    for _ in range(GROWTH_STEPS):
        total = np.zeros_like(added)
        for block in blocks:
            left = block.values - block.observed * (state.u[block.rows] @ fit.T)
            # V ← Rᵀ R V
            total += left.T @ (left @ added)
        added = np.linalg.qr(total)[0]
    size = 1.0 if state.wide else np.sqrt(state.noise)
    grown = start([], len(state.u), p, rank, state.wide, rng)
    grown.v = np.hstack([state.v, size * np.sqrt(p) * added])
    old = _unpacking(rank)[: state.rank, : state.rank][_upper(state.rank)]
    grown.v_cov[:, old] = state.v_cov
    grown.u[:, : state.rank + 1] = state.u
    grown.u_mean = np.concatenate([state.u_mean, np.zeros(more)])
    spare = 1.0 / state.noise
    grown.u_precision = np.concatenate([state.u_precision, np.full(more, spare if state.wide else 1.0)])
    grown.v_precision = np.concatenate([state.v_precision, np.full(more, 1.0 if state.wide else spare)])
    grown.noise, grown.residual, grown.variance = state.noise, state.residual, state.variance
    grown.most_noise = state.most_noise
    return grown


def converge(state: State, blocks: Iterable[Block], max_steps: int, tolerance: float) -> None:
    """Run both phases until what the factors leave settles, however much of it counts as noise.

    A state that has grown knows all directions but the new ones, and needs few steps of the first phase.
    """
    first = GROWN_STEPS if state.residual else max(1, max_steps // 2)
    phases = ((False, first, DIRECTIONS_SETTLED), (True, max_steps, tolerance))
    for integrate_both, steps, settled in phases:
        for _ in range(steps):
            before = state.residual or state.noise
            step(state, blocks, integrate_both)
            if abs(np.log(state.residual / before)) < settled:
                break


def step(state: State, blocks: Iterable[Block], integrate_both: bool, update_rows: bool = True) -> None:
    """Update rows, priors, noise and outputs of a state in one pass over the data.

    `integrate_both` gives the shorter side a posterior too, otherwise it is a parameter; `update_rows=False` learns the
    outputs alone, for outputs that were not there before.
    """
    k, rank = state.rank + 1, state.rank
    row_cov, output_cov = (integrate_both or not state.wide), (integrate_both or state.wide)
    row_precision = state.u_precision if row_cov else _weak(state.u_precision)
    ones = np.ones((len(state.v), 1))
    v1 = np.hstack([ones, state.v])
    # E[(1, v)(1, v)ᵀ], packed: the row of the 1 comes first
    v2 = np.hstack([v1, _outer(state.v) + (state.v_cov if output_cov else 0.0)])
    gram = np.zeros((len(state.v), v2.shape[1]))
    cross = np.zeros((len(state.v), k))
    squares = count = 0.0
    for block in blocks:
        a, c = block.observed @ v2, block.values @ v1
        if update_rows:
            state.u[block.rows], state.u_cov[block.rows] = _posterior(
                a, c, row_precision, row_precision * state.u_mean, state.noise
            )
        u = state.u[block.rows]
        u2 = _outer(u) + (state.u_cov[block.rows] if row_cov else 0.0)
        gram += block.observed.T @ u2
        cross += block.values.T @ u
        # Σ E[(y - b - u·v)²] from the statistics of the rows
        squares += float((block.values**2).sum() - 2.0 * (u * c).sum() + (u2 * a * _twice(k)).sum())
        count += float(block.observed.sum())
    if update_rows:
        state.residual = max(squares / max(count, 1.0), NOISE_FLOOR * state.variance)
        state.noise = min(state.residual, state.most_noise)
        _update_row_prior(state, row_cov)
    output_precision = state.v_precision if output_cov else _weak(state.v_precision)
    # Σ E[u (y - b)] = Σ E[u] y - Σ E[u b]
    state.v, state.v_cov = _posterior(
        gram[:, k:], cross[:, 1:] - gram[:, 1:k], output_precision, np.zeros(rank), state.noise
    )
    if update_rows:
        _rotate(state, row_cov, output_cov)


def _posterior(
    gram: FloatArray, cross: FloatArray, precision: FloatArray, shift: FloatArray, noise: float
) -> tuple[FloatArray, FloatArray]:
    """Return means (m, k) and packed covariances of m Gaussian posteriors: (diag + G / s²)⁻¹ (shift + c / s²)."""
    k = len(precision)
    mean, covariance = np.empty_like(cross), np.empty_like(gram)
    upper = _upper(k)
    for begin in range(0, len(gram), SOLVE_CHUNK):
        part = slice(begin, begin + SOLVE_CHUNK)
        inverse = np.linalg.inv(np.diag(precision) + gram[part][:, _unpacking(k)] / noise)
        mean[part] = (inverse @ (shift + cross[part] / noise)[:, :, None])[:, :, 0]
        covariance[part] = inverse[:, upper[0], upper[1]]
    return mean, covariance


def _weak(precision: FloatArray) -> FloatArray:
    """Return a ridge that is the same for all directions, so that small ones can still grow."""
    return np.full_like(precision, WEAK * precision.min())


def _update_row_prior(state: State, row_cov: bool) -> None:
    state.u_mean = state.u.mean(axis=0)
    spread = ((state.u - state.u_mean) ** 2).mean(axis=0)
    if row_cov:
        spread += state.u_cov.mean(axis=0)[np.diag(_unpacking(len(spread)))]
    state.u_precision = 1.0 / np.maximum(spread, NOISE_FLOOR * state.variance)


def _rotate(state: State, row_cov: bool, output_cov: bool) -> None:
    """Move to the equivalent coordinates in which both priors are diagonal and the longer side's is N(0, I).

    Alternating steps crawl along such equivalent coordinates; jumping there makes them converge in tens of steps.
    """
    rank = state.rank
    unpacking = _unpacking(rank)
    # For a few outputs the rows' means have a prior of their own that the shift would break.
    shift = state.v.mean(axis=0) if state.wide else np.zeros(rank)
    v = state.v - shift
    cov_v = v.T @ v / len(v) + (state.v_cov.mean(axis=0)[unpacking] if output_cov else 0.0)
    u = state.u[:, 1:] - state.u_mean[1:]
    k = rank + 1
    cov_u = u.T @ u / len(u) + (state.u_cov[:, k:].mean(axis=0)[unpacking] if row_cov else 0.0)
    whitened, other = (cov_v, cov_u) if state.wide else (cov_u, cov_v)
    root = np.linalg.cholesky(whitened + 1e-9 * np.trace(whitened) * np.eye(rank))
    spread, basis = np.linalg.eigh(root.T @ other @ root)
    to_white = basis[:, ::-1].T @ np.linalg.inv(root)
    turn_v = np.asarray(to_white if state.wide else np.linalg.inv(to_white).T, dtype=np.float64)
    turn_u = np.eye(k)
    turn_u[0, 1:] = shift
    turn_u[1:, 1:] = np.linalg.inv(turn_v).T
    state.v = v @ turn_v.T
    state.v_cov = state.v_cov @ _congruence(turn_v)
    state.u = state.u @ turn_u.T
    state.u_cov = state.u_cov @ _congruence(turn_u)
    state.u_mean = turn_u @ state.u_mean
    precision = 1.0 / np.maximum(spread[::-1], NOISE_FLOOR**2 * state.variance)
    state.v_precision = np.ones(rank) if state.wide else precision
    state.u_precision = np.concatenate([state.u_precision[:1], precision if state.wide else np.ones(rank)])


# The same few sizes are asked for in every step, and on a small table looking them up would take most of the time.
@lru_cache
def _upper(k: int) -> tuple[IntArray, IntArray]:
    """Return rows and columns of the upper triangle of a k x k matrix, in packed order."""
    rows, columns = np.triu_indices(k)
    return rows, columns


@lru_cache
def _unpacking(k: int) -> IntArray:
    """Return where each entry of a symmetric k x k matrix is in its packed upper triangle, shape (k, k)."""
    index = np.zeros((k, k), dtype=np.int64)
    upper = _upper(k)
    index[upper] = np.arange(len(upper[0]))
    return np.maximum(index, index.T)


@lru_cache
def _basis(k: int) -> FloatArray:
    """Return the symmetric matrix that each packed entry stands for, shape (t, k, k)."""
    return np.eye(k * (k + 1) // 2)[:, _unpacking(k)]


@lru_cache
def _twice(k: int) -> FloatArray:
    """Return how often each packed entry occurs in the full matrix."""
    rows, columns = _upper(k)
    return np.where(rows == columns, 1.0, 2.0)


def _outer(x: FloatArray) -> FloatArray:
    """Return the packed outer product of every row with itself."""
    rows, columns = _upper(x.shape[1])
    return x[:, rows] * x[:, columns]


def _congruence(turn: FloatArray) -> FloatArray:
    """Return the matrix that maps packed S, as a row vector, to packed T S Tᵀ."""
    rows, columns = _upper(len(turn))
    return np.asarray((turn @ _basis(len(turn)) @ turn.T)[:, rows, columns])
