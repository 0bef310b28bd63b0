"""Held-out cells choose the rank of a table and the scaling of its outputs, one set of cells for both."""

from dataclasses import dataclass, replace

import numpy as np

from manygp.data import Scaling, Table
from manygp.data.factorisation import best_rank, is_flat
from manygp.data.table import IntArray
from manygp.initialise.factorisers import Factoriser, Fit

__all__ = ["RANKS", "Choice", "rehearse", "rehearse_alone"]

# Numbers of factors to choose from.
RANKS = (1, 2, 3, 4, 6, 8, 12, 16)
# A rank that overfits would say little about the scaling.
_MAX_SCALING_RANK = 8
# Outputs whose scales differ by less have the rank that they have in one unit.
_SAME_UNIT = 1.5
# Errors far below this are all as good.
_LEAST_ERROR = 1e-4
# With fewer cells of an output, an error of its centre costs more than 0.05 nats, ½ log(1 + 1/n).
_CELLS_OF_A_CENTRE = 10.0


@dataclass(frozen=True)
class Choice:
    """Rank, scaling with its name, and the mean squared error on held-out cells that they led to, in scaled units."""

    rank: int
    scaling: Scaling
    kind: str
    held_out_error: float


def rehearse(table: Table, factoriser: Factoriser, kinds: tuple[str, ...], most: int, tolerance: float) -> Choice:
    """The rank, and the scaling of the outputs, under which a factorisation predicts held-out cells best.

    Best is the largest log density of Gaussian errors whose variance is the same for all cells in scaled units, which
    is what models assume. Squared errors alone would not mind a scale that makes small errors look like large ones.

    Parameters
    ----------
    table
        The observations.
    factoriser
        How they are factorised, and which cells are held out.
    kinds
        Candidates among "output" (each by its own observed cells), "global" (one for all), "completed" (each by its
        column, gaps filled by the factorisation) and "none". Where "global" is the best of several, and levels of
        outputs differ by more than their functions do, and have cells enough to tell, the choice is "centred": one
        scale for all, about the centres of completed columns.
    most
        Largest rank.
    tolerance
        Relative gain in held-out error that is not worth more factors.
    """
    ranks = [rank for rank in RANKS if rank <= min(most, factoriser.most_factors())] or [1]
    first = kinds[0] if kinds[0] != "completed" else "global"
    common = _fit(table, first)
    fits, errors = _by_rank(factoriser, common, ranks, tolerance)
    rank = best_rank(errors, tolerance)
    used = max(r for r in fits if r <= max(min(rank, _MAX_SCALING_RANK), ranks[0]))
    losses, held_out = {}, {first: float(np.median([fit.error for fit in fits[used]]))}
    for kind in kinds if kinds != (first,) else ():
        losses[kind], held_out[kind] = _loss(factoriser, kind, common if kind == first else None, fits[used], used)
    kind = min(losses, key=losses.__getitem__) if losses else first
    if kind == first:
        if kind != "global" or len(kinds) == 1:
            return Choice(rank, common, kind, held_out[kind])
        completed = factoriser.completed(common, used)
        seen = completed.pick(factoriser.outputs)
        if np.var(seen.y_center) <= np.mean(np.square(seen.y_scale)) or not _can_tell_centres(table):
            return Choice(rank, common, kind, held_out[kind])
        scaling = _centred(common, completed, factoriser.outputs)
        unit = common.y_scale[0] / scaling.y_scale[0]
        return Choice(rank, scaling, "centred", held_out[kind] * float(unit**2))
    scaling = factoriser.completed(common, used) if kind == "completed" else _fit(table, kind)
    scales = scaling.y_scale[factoriser.outputs]
    if scales.max() > _SAME_UNIT * scales.min():
        # A rank that was found in one unit for all is that of the outputs whose numbers are largest.
        rank = best_rank(_by_rank(factoriser, scaling, ranks, tolerance)[1], tolerance)
    return Choice(rank, scaling, kind, held_out[kind])


def _centred(common: Scaling, completed: Scaling, outputs: IntArray) -> Scaling:
    """One scale for all outputs, each about the centre of its completed column.

    Levels of outputs would otherwise be functions like all others, and far larger than these where units differ.
    """
    scale = float(np.sqrt(np.mean(np.square(completed.y_scale[outputs]))))
    return replace(common, y_center=completed.y_center, y_scale=np.full_like(common.y_scale, scale))


def _can_tell_centres(table: Table) -> bool:
    """Whether outputs have cells enough for centres of their own: with n of them, errors grow by a share of 1 / n."""
    count = table.count_per_output()
    return float(np.mean(1.0 / count[count > 0])) < 1.0 / _CELLS_OF_A_CENTRE


def _by_rank(
    factoriser: Factoriser, scaling: Scaling, ranks: list[int], tolerance: float
) -> tuple[dict[int, list[Fit]], dict[int, float]]:
    """Fits to all splits and their error by rank, until two ranks in a row bring nothing."""
    part = scaling.pick(factoriser.outputs)
    paths = [factoriser.path(split, part, ranks) for split in factoriser.splits]
    fits, errors = dict[int, list[Fit]](), dict[int, float]()
    for rank in ranks:
        fits[rank] = [next(path) for path in paths]
        # On a log scale, so that one hopeless set of cells does not outvote the others.
        scores = [max(fit.error, np.finfo(np.float64).tiny) for fit in fits[rank]]
        errors[rank] = float(np.exp(np.log(scores).mean()))
        if is_flat(errors, tolerance):
            break
    return fits, errors


def _loss(factoriser: Factoriser, kind: str, common: Scaling | None, fits: list[Fit], rank: int) -> tuple[float, float]:
    """Negative log density of held-out cells in one scaling, up to a constant, and their median error in its units."""
    errors, losses = [], []
    for split, fit in zip(factoriser.splits, fits, strict=True):
        train, held = split
        error, counts = fit.error, held.count_per_output()
        if common is not None:
            scaling = common.pick(factoriser.outputs)
        else:
            scaling = fit.completed() if kind == "completed" else _fit(train, kind)
            (last,) = factoriser.path(split, scaling, [rank])
            error = last.error
        # −log N(e | 0, s²σ²) with σ² the mean of e²/s²: log s + ½ log σ², and a constant
        log_scale = float(counts @ np.log(scaling.y_scale)) / counts.sum()
        losses.append(log_scale + 0.5 * float(np.log(error + _LEAST_ERROR)))
        errors.append(error)
    return float(np.mean(losses)), float(np.median(errors))


def rehearse_alone(table: Table, factoriser: Factoriser) -> Scaling:
    """Each output by its own centre and scale, or all by one: whichever predicts held-out cells better by itself.

    That of its own cells is best where gaps are scattered, but not where an output lost a stretch unlike the rest.
    """
    kinds, losses = ("output", "global"), np.zeros(2)
    for train, held in factoriser.splits:
        counts = held.count_per_output()
        for i, kind in enumerate(kinds):
            scaling = _fit(train, kind)
            error = (held.power_sums(2, scaling.y_center) / scaling.y_scale**2).sum() / counts.sum()
            losses[i] += counts @ np.log(scaling.y_scale) / counts.sum() + 0.5 * np.log(error + _LEAST_ERROR)
    return _fit(table, kinds[int(losses.argmin())])


def _fit(table: Table, kind: str) -> Scaling:
    return Scaling.fit(table, inputs=kind != "none", outputs=kind)  # type: ignore[arg-type]
