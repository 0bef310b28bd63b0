"""Figures of how far to trust a prediction: reliability, PIT, residuals; and of what is missing."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manygp.data import as_table
from manygp.data.table import Table
from manygp.errors import DataError
from manygp.plots.canvas import INK, ORANGE, Axes, one_axes
from manygp.prediction import Prediction

_LEVELS = np.linspace(0.05, 0.95, 19)


def plot_reliability(prediction: Prediction, Y: Any, *, ax: Axes | None = None, label: str = "") -> Axes:
    """Draw which share of values lies in central intervals of every level; the diagonal is right.

    Parameters
    ----------
    prediction
        Predictions of the cells of Y.
    Y
        Values, NaN where there is none.
    ax
        Where to draw; a figure of its own by default. Several models fit into one.
    label
        What to call the curve in a legend.

    Returns
    -------
    Axes
        Where it was drawn; `.figure` is the figure.
    """
    reach = np.abs(2.0 * _pit(prediction, Y) - 1.0)
    held = [float(np.mean(reach <= level)) for level in _LEVELS]
    with one_axes(ax, 4.6, 4.2) as axis:
        if not axis.lines:
            axis.plot([0, 1], [0, 1], color="#999999", ls=(0, (4, 3)), lw=1)
        axis.plot(_LEVELS, held, "o-", ms=3.5, lw=1.5, label=label or None)
        axis.set(
            xlabel="level of the interval", ylabel="share of values inside", xlim=(0, 1), ylim=(0, 1), aspect="equal"
        )
        axis.set_title("reliability")
        if label:
            axis.legend()
    return axis


def plot_pit(prediction: Prediction, Y: Any, *, ax: Axes | None = None, bins: int = 20) -> Axes:
    """Draw where values fell in their predictions: flat is right, a hill is too unsure, a valley too sure.

    Parameters
    ----------
    prediction, Y, ax
        As in `plot_reliability`.
    bins
        Number of bars.
    """
    share = np.histogram(pit := _pit(prediction, Y), bins=bins, range=(0.0, 1.0))[0] / len(pit)
    with one_axes(ax, 5.0, 3.2) as axis:
        axis.bar((np.arange(bins) + 0.5) / bins, share, width=0.92 / bins, color=INK)
        axis.axhline(1.0 / bins, color=ORANGE, ls=(0, (4, 3)), lw=1.2)
        axis.set(xlabel="probability integral transform", ylabel="share of values", xlim=(0, 1))
        axis.set_title(f"PIT of {len(pit):,} values")
    return axis


def plot_residuals(prediction: Prediction, Y: Any, *, ax: Axes | None = None) -> Axes:
    """Draw standardised residuals over the input, or over predicted means where there are several inputs.

    Parameters
    ----------
    prediction, Y, ax
        As in `plot_reliability`.
    """
    values = prediction._as_values(Y)
    residual = (values - prediction.mean) / prediction.std
    seen = np.isfinite(residual)
    if not seen.any():
        raise DataError("Y has no value to draw: every one is NaN; give at least one.")
    is_line = prediction.inputs.shape[1] == 1
    rows = prediction._rows.iloc[:, 0].to_numpy() if is_line else None
    across = (
        prediction.mean if rows is None else np.broadcast_to(rows.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    )
    with one_axes(ax, 6.5, 3.4) as axis:
        axis.axhspan(-1.645, 1.645, color=INK, alpha=0.1, lw=0)
        axis.axhline(0.0, color="#999999", lw=1)
        axis.plot(across[seen], residual[seen], "o", color=INK, ms=2.6, alpha=0.6, mew=0)
        name = prediction._rows.columns[0]
        axis.set_xlabel(("input" if isinstance(name, int) else str(name)) if is_line else "predicted mean")
        axis.set_ylabel("residual / std")
        axis.set_title(f"residuals; the band should hold 90% and holds {np.mean(np.abs(residual[seen]) <= 1.645):.0%}")
    return axis


def plot_gaps(table: Any, *, ax: Axes | None = None) -> Axes:
    """Draw which cells of a table are observed (dark) and which are missing: inputs across, outputs down.

    Parameters
    ----------
    table
        A frame, DataArray, AnnData, `Table` or array of values, shape (n, p).
    ax
        Where to draw; a figure of its own by default.
    """
    if isinstance(table, np.ndarray):
        table = as_table(np.arange(len(table), dtype=np.float64)[:, None], table)
    grid = (table if isinstance(table, Table) else as_table(table)).to_grid()
    order = np.argsort(grid.X[:, 0], kind="stable") if grid.num_features == 1 else np.arange(grid.num_inputs)
    seen = ~np.isnan(grid.block(order, np.arange(grid.num_outputs)))
    with one_axes(ax, 7.0, 3.6) as axis:
        axis.imshow(seen.T, aspect="auto", interpolation="nearest", cmap="Blues", vmin=-0.1, vmax=1.2)
        axis.set(xlabel="inputs in order", ylabel="outputs")
        if grid.num_outputs <= 30:
            axis.set_yticks(range(grid.num_outputs), [str(name) for name in grid.output_names], fontsize=8)
        axis.set_title(f"{1 - seen.mean():.0%} of {seen.size:,} cells are missing")
    return axis


def _pit(prediction: Prediction, Y: ArrayLike) -> NDArray[np.float64]:
    """Probability integral transform of the values that are there; randomised where they are discrete."""
    cdf = prediction.cdf(Y)
    seen = np.isfinite(cdf)
    if not seen.any():
        raise DataError("Y has no value to draw: every one is NaN; give at least one.")
    if not prediction._likelihood.is_discrete:
        return cdf[seen]
    mass = np.exp(prediction.log_prob(Y))[seen]
    return np.asarray(cdf[seen] - np.random.default_rng(0).random(seen.sum()) * mass)
