"""Masked low-rank factorisation of a grid: the honest rival of every model here, and their starting point."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from manygp.data.grid import Grid
from manygp.data.lowrank import Block, State, converge, grow, start, step
from manygp.data.scaling import Scaling
from manygp.data.splits import pattern_split
from manygp.data.table import BoolArray, FloatArray, IntArray, Table
from manygp.errors import DataError, SettingError

# Cells that a factorisation is fitted to before it is polished on all of them.
SAMPLE_CELLS = 1_500_000
SAMPLE_SIDE = 5_000
# Full passes over the data after the sample has settled.
POLISH_STEPS = 4
# Most passes, and the change of the noise that ends them, where ranks are only compared.
PATH_STEPS, ROUGHLY = 100, 3e-3


@dataclass(frozen=True, eq=False)
class Factorisation:
    """A low-rank description of a grid in scaled units: y_np ≈ row_mean_n + row_factors_n · loadings_p.

    Columns come in the order of their singular values. The columns of `loadings` have mean 0 and spread 1 over
    the outputs that were observed and are orthogonal to each other; the columns of `row_factors` are orthogonal
    and carry the scale: `spread` says how much each explains, and is about 0 for columns that the data do not
    support, whose loadings mean nothing. Columns beyond the size of the table are 0 altogether, and so are the
    loadings of an output without observations, whose prediction is therefore `row_mean`.

    Parameters
    ----------
    row_mean
        Mean over the outputs at each input, shape (n,).
    row_factors
        Factors of each input, shape (n, r).
    loadings
        Weights of each output, shape (p, r).
    noise_variance
        Variance of what the factors leave unexplained in the observed cells.
    """

    row_mean: FloatArray
    row_factors: FloatArray
    loadings: FloatArray
    noise_variance: float

    @property
    def rank(self) -> int:
        """Number of factors."""
        return int(self.loadings.shape[1])

    @property
    def spread(self) -> FloatArray:
        """Standard deviation over all cells that each factor explains, in descending order, shape (r,)."""
        return np.asarray(np.sqrt((self.row_factors**2).mean(axis=0)))

    def predict(self, rows: IntArray | None = None, outputs: IntArray | None = None) -> FloatArray:
        """Return predictions in scaled units at some rows and outputs (all by default), shape (rows, outputs)."""
        at: IntArray | slice = slice(None) if rows is None else rows
        of: IntArray | slice = slice(None) if outputs is None else outputs
        return np.asarray(self.row_mean[at, None] + self.row_factors[at] @ self.loadings[of].T)

    def at(self, rows: IntArray, outputs: IntArray) -> FloatArray:
        """Return predictions of single cells in scaled units, shape (c,)."""
        return np.asarray(self.row_mean[rows] + (self.row_factors[rows] * self.loadings[outputs]).sum(axis=1))

    def mean_squared_error(self, table: Table, scaling: Scaling, unit: FloatArray | None = None) -> float:
        """Return the mean squared error over the observed cells of a table with the same inputs and outputs.

        Parameters
        ----------
        table
            The cells to compare with.
        scaling
            The scaling that the factorisation was fitted with.
        unit
            Size of a unit of each output in the table's own units, shape (p,); by default errors are in the
            table's units. Compare scalings with the same `unit`.
        """
        return float(self.squared_errors(table, scaling, unit).sum()) / max(table.num_observed, 1)

    def squared_errors(self, table: Table, scaling: Scaling, unit: FloatArray | None = None) -> FloatArray:
        """Return the sum of squared errors over the observed cells of each output, shape (p,)."""
        total = np.zeros(table.num_outputs)
        for row, output, y in table.chunks():
            error = scaling.unscale_mean(self.at(row, output), output) - y
            total += np.bincount(output, (error / (1.0 if unit is None else unit[output])) ** 2, len(total))
        return total


@dataclass(frozen=True)
class RankChoice:
    """The smallest rank with about the least held-out error, and the mean squared errors of those tried."""

    rank: int
    errors: dict[int, float]


def factorise(
    table: Table,
    scaling: Scaling,
    rank: int,
    *,
    rng: np.random.Generator | None = None,
    max_steps: int = 100,
    tolerance: float = 1e-4,
    most_noise: float = np.inf,
) -> Factorisation:
    """Factorise a grid with gaps.

    Ridge-regularised alternating least squares with every variance estimated from the data, see
    `manygp.data.lowrank`. A large table is fitted on a sample of its longer side first and then polished in a few
    passes over all cells. Time is O(cells · r²) a pass; memory is O((n + p) r²) and some chunks.

    Parameters
    ----------
    table
        The observations, as a grid.
    scaling
        Maps values to the units in which they are factorised.
    rank
        Number of factors.
    rng
        Source of randomness for the starting point; a fixed seed by default.
    max_steps, tolerance
        Most passes, and the relative change of the noise variance that ends them.
    most_noise
        Most of the variance, in scaled units, that counts as noise. Factors that explain less than noise would are
        switched off; a small bound keeps them, for those who can tell them from noise by other means.
    """
    grid = _as_grid(table)
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 1:
        raise SettingError(f"rank={rank!r} is no number of factors; give a whole number of at least 1.")
    if not grid.num_observed:
        raise DataError("There is no observed cell to factorise; give at least one value that is not NaN.")
    rng = np.random.default_rng(0) if rng is None else rng
    working_rank = min(int(rank), grid.num_inputs, grid.num_outputs)
    state = _fit_sample(grid, scaling, working_rank, rng, max_steps, tolerance, most_noise)
    observed = grid.count_per_output() > 0
    return canonical(state.u, state.v, int(rank), observed, state.residual, np.sqrt(state.variance))


def choose_rank(
    table: Table,
    scaling: Scaling,
    ranks: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16),
    *,
    rng: np.random.Generator | None = None,
    max_side: int = 3000,
    repeats: int | None = None,
    tolerance: float = 0.02,
) -> RankChoice:
    """Choose a rank by cells held out in the pattern of the gaps.

    Parameters
    ----------
    table
        The observations, as a grid.
    scaling
        Maps values to the units in which they are factorised and compared.
    ranks
        Ranks to try in ascending order, until two in a row bring nothing; those above the number of inputs or
        outputs are left out.
    rng
        Source of randomness; a fixed seed by default.
    max_side
        Most inputs and most outputs to try on; larger tables are sampled.
    repeats
        Number of held-out sets to average over; by default one, or more for small tables.
    tolerance
        Relative gain in held-out error that is not worth more factors. Where noise makes up most of the error, what
        factors explain is a small part of it.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    grid = _as_grid(table)
    part, outputs = thinned(grid, rng, max_side)
    part_scaling = scaling.pick(outputs)
    tried = sorted({int(r) for r in ranks if 0 < r <= min(part.num_inputs, part.num_outputs)}) or [1]
    if part.num_observed < 2:
        return RankChoice(tried[0], {})
    # In a small table a few held-out blocks decide, and their errors vary much from draw to draw.
    repeats = int(np.clip(10_000 // max(part.num_observed, 1), 1, 8)) if repeats is None else repeats
    splits = [pattern_split(part, rng) for _ in range(repeats)]
    paths = [factorise_path(train, part_scaling, tried) for train, _ in splits]
    errors: dict[int, float] = {}
    for rank, fits in zip(tried, zip(*paths, strict=True), strict=False):
        scores = [
            fit.mean_squared_error(test, part_scaling, part_scaling.y_scale)
            for fit, (_, test) in zip(fits, splits, strict=True)
        ]
        # On a log scale, so that one hopeless set of cells does not outvote the others.
        errors[rank] = float(np.exp(np.log(np.maximum(scores, np.finfo(np.float64).tiny)).mean()))
        if is_flat(errors, tolerance):
            break
    return RankChoice(best_rank(errors, tolerance), errors)


def is_flat(errors: dict[int, float], tolerance: float) -> bool:
    """Return whether the last two ranks have brought nothing."""
    latest = list(errors.values())[-3:]
    return len(latest) == 3 and min(latest[1:]) > (1.0 - 0.5 * tolerance) * latest[0]


def best_rank(errors: dict[int, float], tolerance: float) -> int:
    """Return the smallest rank with about the least error; held-out errors are estimates."""
    most = (1.0 + tolerance) * min(errors.values())
    return min(rank for rank, error in errors.items() if error <= most)


def factorise_path(
    grid: Grid, scaling: Scaling, ranks: Sequence[int], rng: np.random.Generator | None = None
) -> Iterator[Factorisation]:
    """Yield factorisations of a small grid of ascending ranks, each beginning where the last one ended."""
    rng = np.random.default_rng(0) if rng is None else rng
    n, p, observed = grid.num_inputs, grid.num_outputs, grid.count_per_output() > 0
    blocks, state = list(_Reader(grid, scaling)), None
    for rank in ranks:
        state = start(blocks, n, p, rank, p >= n, rng) if state is None else grow(state, blocks, rank, rng)
        converge(state, blocks, PATH_STEPS, ROUGHLY)
        yield canonical(state.u, state.v, rank, observed, state.residual, np.sqrt(state.variance))


def completed_scaling(table: Table, scaling: Scaling, factorisation: Factorisation) -> Scaling:
    """Return centres and scales of the outputs as they would be without gaps.

    Observed cells count as they are and gaps as the factorisation fills them, so that an output which lost its
    summers is not taken for a cold one.

    Parameters
    ----------
    table
        The observations, as a grid.
    scaling
        The scaling that the factorisation was fitted with; its inputs are kept.
    factorisation
        Fills the gaps.
    """
    grid = _as_grid(table)
    total = np.zeros(grid.num_outputs)
    squares = np.zeros(grid.num_outputs)
    center = total
    for _ in range(2):
        total = np.zeros(grid.num_outputs)
        squares = np.zeros(grid.num_outputs)
        for block in _Reader(grid, scaling):
            rows = np.arange(block.rows.start, block.rows.stop)
            filled = np.where(block.observed > 0, block.values, factorisation.predict(rows)) - center
            total += filled.sum(axis=0)
            squares += (filled**2).sum(axis=0)
        center = center + total / grid.num_inputs
    spread = np.sqrt(squares / grid.num_inputs)
    return replace(
        scaling, y_center=scaling.unscale_mean(center), y_scale=np.where(spread > 1e-6, spread, 1.0) * scaling.y_scale
    )


class _Reader:
    """The scaled values of a grid, read afresh in chunks of rows at every pass."""

    def __init__(self, grid: Grid, scaling: Scaling) -> None:
        self.grid = grid
        self.scaling = scaling

    def __iter__(self) -> Iterator[Block]:
        for rows in self.grid.row_chunks():
            observed = self.grid.observed(rows)
            values = np.where(observed, self.scaling.scale_y(self.grid.values(rows)), 0.0)
            yield Block(rows, values, observed.astype(np.float64))


def _as_grid(table: Table) -> Grid:
    if not isinstance(table, Grid):
        raise DataError(
            "A factorisation needs outputs that share their inputs, and this table is a list of cells; "
            "use Cells.to_grid() when inputs coincide."
        )
    return table


def _fit_sample(
    grid: Grid,
    scaling: Scaling,
    rank: int,
    rng: np.random.Generator,
    max_steps: int,
    tolerance: float,
    most_noise: float,
) -> State:
    """Fit a sample of the longer side to convergence, then polish on the whole."""
    n, p = grid.num_inputs, grid.num_outputs
    wide = p >= n
    longest = int(np.clip(SAMPLE_CELLS // min(n, p), 500, SAMPLE_SIDE))
    rows, outputs = np.arange(n), np.arange(p)
    if max(n, p) > 2 * longest:
        if wide:
            outputs = _draw(np.flatnonzero(grid.count_per_output()), longest, rng)
        else:
            rows = _draw(np.flatnonzero(grid.count_per_input()), longest, rng)
    sampled = len(rows) < n or len(outputs) < p
    part, part_scaling = grid, scaling
    if sampled:
        part, part_scaling = Grid(grid.X[rows], grid.block(rows, outputs)), scaling.pick(outputs)
    blocks = list(_Reader(part, part_scaling))
    state = start(blocks, len(rows), len(outputs), rank, wide, rng)
    state.most_noise = most_noise
    converge(state, blocks, max_steps, tolerance)
    if sampled:
        del blocks
        reader = _Reader(grid, scaling)
        if wide:
            state.v, state.v_cov = np.zeros((p, rank)), np.zeros((p, state.v_cov.shape[1]))
            step(state, reader, integrate_both=True, update_rows=False)
        else:
            state.u, state.u_cov = np.zeros((n, rank + 1)), np.zeros((n, state.u_cov.shape[1]))
        for _ in range(POLISH_STEPS):
            step(state, reader, integrate_both=True)
    return state


def _draw(candidates: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    return np.sort(rng.choice(candidates, min(size, len(candidates)), replace=False))


def thinned(
    grid: Grid, rng: np.random.Generator, max_side: int, max_cells: int = SAMPLE_CELLS
) -> tuple[Grid, IntArray]:
    """Return a random part of a grid that is quick to factorise, and which outputs it has."""
    sides = [min(grid.num_inputs, max_side), min(grid.num_outputs, max_side)]
    if sides[0] * sides[1] > max_cells:
        # Both sides shrink, but a short one stays whole.
        even = int(np.sqrt(max_cells))
        short = min(min(sides), even)
        sides = [min(side, max(short, max_cells // short)) if side > even else side for side in sides]
    rows = _draw(np.flatnonzero(grid.count_per_input()), sides[0], rng)
    outputs = _draw(np.flatnonzero(grid.count_per_output()), sides[1], rng)
    return Grid(grid.X[rows], grid.block(rows, outputs)), outputs


def canonical(
    rows: FloatArray, loadings: FloatArray, rank: int, observed: BoolArray, noise: float, least: float = 0.0
) -> Factorisation:
    """Return rows (n, 1 + k), the mean over outputs first, and loadings (p, k) in the coordinates of `Factorisation`.

    They come from any y_np ≈ rows_n0 + Σ_k rows_nk loadings_pk, with the variance `noise` of what is left unexplained.
    Factors beyond k are 0, and singular values that are far below `least` count as 0.
    """
    mean = loadings[observed].mean(axis=0)
    v = np.where(observed[:, None], loadings - mean, 0.0)
    q_u, r_u = np.linalg.qr(rows[:, 1:])
    q_v, r_v = np.linalg.qr(v)
    left, size, right = np.linalg.svd(r_u @ r_v.T)
    kept = int((size > 1e-10 * max(size[0], least)).sum())
    spread = np.sqrt(observed.sum())
    row_factors = np.zeros((len(rows), rank))
    scaled = np.zeros((len(v), rank))
    row_factors[:, :kept] = q_u @ (left[:, :kept] * size[:kept]) / spread
    scaled[:, :kept] = spread * q_v @ right[:kept].T
    return Factorisation(
        row_mean=rows[:, 0] + rows[:, 1:] @ mean, row_factors=row_factors, loadings=scaled, noise_variance=float(noise)
    )
