"""Lengthscales by evidence: what a few outputs, each a GP of its own, say about the inputs."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.spatial import cKDTree
from torch import Tensor

from manygp.data import Cells, Grid, Scaling, Table
from manygp.data.table import FloatArray, IntArray
from manygp.errors import NumericalError
from manygp.linalg import safe_cholesky

__all__ = ["Lengthscales", "evidence_lengthscales"]

# Lengthscales in standard deviations of the inputs, from far below to far above.
_GRID = tuple(2.0**k for k in range(-6, 4))
# Signals and noises that are tried with each, and one that is as good as white.
_STARTS, _WHITE = ((1.0, 0.01), (1.0, 0.1), (1.0, 0.5)), (0.1, 0.9)
_MAX_OUTPUTS = 20
# The shortest lengthscale, in distances between neighbours, and how many are looked at.
_SHORTEST, _MAX_QUERIES = 1.0 / 3.0, 1000


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


@torch.enable_grad()
def evidence_lengthscales(
    table: Table,
    scaling: Scaling,
    rng: np.random.Generator,
    max_noise: float = math.inf,
    max_points: int = 160,
    tolerance: float = 0.0,
) -> Lengthscales:
    """Shared ARD lengthscales that maximise the exact evidence of a few outputs, each a GP of its own.

    Every output contributes a subset of its cells: neighbours of a random cell, so that short lengthscales show, and
    as many cells from anywhere. A coarse grid over one common lengthscale, then L-BFGS on all of them. Neighbours
    are not farther than three lengthscales apart: there, all functions are white, whatever the lengthscales.

    `max_noise` is an upper bound of the noise variance that is known from elsewhere: without it, jumps that all outputs
    share pass for noise of each. With a `tolerance`, in nats a cell, L-BFGS begins at the longest lengthscale that is
    as good as any within it: what may as well be noise is taken for noise.
    """
    # Constant data have no noise at all, and no logarithm of it.
    max_noise = max(max_noise, 1e-6)
    x, y, seen = _subsets(table, scaling, rng, max_points)
    d = x.shape[-1]
    values = dict[float, tuple[float, Tensor]]()
    for factor in _GRID:
        for signal, noise in (*_STARTS, _WHITE) if tolerance else _STARTS:
            scales = [math.log(signal), math.log(min(noise, max_noise))]
            raw = torch.tensor([math.log(factor * math.sqrt(d))] * d + scales, dtype=torch.float64)
            value = float(_negative_evidence(raw, x, y, seen, max_noise))
            if value < values.get(factor, (math.inf,))[0]:
                values[factor] = value, raw
    if not values:
        return Lengthscales(np.ones(d), 1.0, 0.1)
    least = min(value for value, _ in values.values()) + tolerance
    start = values[max(factor for factor, (value, _) in values.items() if value <= least)][1]
    raw = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([raw], max_iter=40, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        # A weak pull to the start keeps lengthscales of inputs that do not matter from running away.
        loss = _negative_evidence(raw, x, y, seen, max_noise) + 1e-3 * (raw - start).square().sum()
        loss.backward()
        return float(loss.detach())

    try:
        optimizer.step(closure)
        final = raw.detach() if torch.isfinite(raw).all() else start
    except NumericalError:
        # A step of the line search went where covariances overflow.
        final = start
    lengthscale = final[:d].exp().numpy()
    lengthscale *= max(1.0, _SHORTEST * _spacing(scaling.scale_x(table.X) / lengthscale))
    return Lengthscales(lengthscale, float(final[d].exp()), min(float(final[d + 1].exp()), max_noise))


def _spacing(x: FloatArray) -> float:
    """Median distance of an input to the nearest one that is not the same."""
    x = np.unique(x, axis=0)
    if len(x) < 2:
        return 0.0
    return float(np.median(cKDTree(x).query(x[:: 1 + len(x) // _MAX_QUERIES], k=2)[0][:, 1]))


def _negative_evidence(
    raw: Float[Tensor, " k"],
    x: Float[Tensor, "p n d"],
    y: Float[Tensor, "p n"],
    seen: Bool[Tensor, "p n"],
    max_noise: float,
) -> Float[Tensor, ""]:
    """Mean negative log evidence per observed cell of independent GPs with shared parameters."""
    d = x.shape[-1]
    z = x / raw[:d].exp()
    s = torch.cdist(z, z, compute_mode="use_mm_for_euclid_dist").square()
    both = seen.unsqueeze(-1) & seen.unsqueeze(-2)
    K = torch.where(both, raw[d].exp() * torch.exp(-0.5 * s), 0.0)
    # Padding has unit variance and value zero: a constant.
    K = K + torch.diag_embed(torch.where(seen, raw[d + 1].exp().clamp(max=max_noise) + 1e-6, 1.0))
    L = safe_cholesky(K)
    a = torch.linalg.solve_triangular(L, y.unsqueeze(-1), upper=False).squeeze(-1)
    logdet = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum()
    return 0.5 * (a.square().sum() + logdet) / seen.sum()


def _subsets(
    table: Table, scaling: Scaling, rng: np.random.Generator, max_points: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Padded subsets of cells of a few outputs: x (p, n, d), y (p, n), seen (p, n)."""
    counts = table.count_per_output()
    usable = np.flatnonzero(counts >= min(3, counts.max()))
    # Well observed outputs say more.
    order = usable[np.argsort(-counts[usable] * rng.uniform(0.5, 1.0, len(usable)))]
    parts = []
    for p in order[:_MAX_OUTPUTS]:
        row, y = _column(table, int(p))
        x, y = scaling.scale_x(table.X[row]), scaling.scale_y(y, np.full(len(y), p))
        if len(y) > max_points:
            near = np.argsort(((x - x[rng.integers(len(x))]) ** 2).sum(1))[: max_points // 2]
            far = rng.choice(len(x), max_points // 2, replace=False)
            kept = np.unique(np.concatenate([near, far]))
            x, y = x[kept], y[kept]
        parts.append((x, y - y.mean()))
    n = max(len(y) for _, y in parts)
    X, Y, seen = (
        np.zeros((len(parts), n, table.num_features)),
        np.zeros((len(parts), n)),
        np.zeros((len(parts), n), bool),
    )
    for i, (x, y) in enumerate(parts):
        X[i, : len(y)], Y[i, : len(y)], seen[i, : len(y)] = x, y, True
    return torch.as_tensor(X), torch.as_tensor(Y), torch.as_tensor(seen)


def _column(table: Table, p: int) -> tuple[IntArray, FloatArray]:
    """Rows and values of the observed cells of one output."""
    if isinstance(table, Cells):
        row = np.flatnonzero(table.output == p)
        return row, table.y[row]
    assert isinstance(table, Grid)
    y = table.block(np.arange(table.num_inputs), np.array([p]))[:, 0]
    row = np.flatnonzero(~np.isnan(y))
    return row, y[row]
