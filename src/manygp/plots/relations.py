"""How outputs are related: correlations with clusters, a network of the nearest, and shares of variance."""

from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from manygp.errors import DataError
from manygp.plots.canvas import INK, ORANGE, Figure, as_columns, canvas

# Labels are drawn up to so many outputs.
_MAX_LABELS = 40
# Okabe and Ito's palette, in the order of the columns of shares.
_COLOURS = (INK, ORANGE, "#009E73", "#CC79A7", "#F0E442", "#56B4E9", "#999999")


def plot_correlation(correlation: ArrayLike, names: Sequence[Hashable] | None = None, *, title: str = "") -> Figure:
    """Draw a matrix of correlations, outputs that are alike next to each other.

    Parameters
    ----------
    correlation
        Correlations (p, p), such as `model.correlation()`.
    names
        Names of the outputs; those of a data frame by default.
    title
        Title.
    """
    C, labels = _square(correlation, names)
    order = _clustered(C)
    C = C[np.ix_(order, order)]
    with canvas(1, 1, 5.6, 4.8) as (figure, axes):
        axis = axes[0, 0]
        drawn = axis.imshow(C, cmap="RdBu_r", vmin=-1.0, vmax=1.0)
        figure.colorbar(drawn, ax=axis, label="correlation", shrink=0.9)
        axis.set(xticks=[], yticks=[])
        if len(C) <= _MAX_LABELS:
            shown = [labels[i] for i in order]
            axis.set_xticks(range(len(C)), shown, rotation=90)
            axis.set_yticks(range(len(C)), shown)
        if title:
            axis.set_title(title)
    return figure


def plot_network(
    correlation: ArrayLike, names: Sequence[Hashable] | None = None, *, num_nearest: int = 3, title: str = ""
) -> Figure:
    """Draw outputs on a circle, each joined with those it is most correlated with, in colour by the sign.

    Parameters
    ----------
    correlation, names, title
        As in `plot_correlation`.
    num_nearest
        Lines from each output.
    """
    C, labels = _square(correlation, names)
    order = _clustered(C)
    C, p = C[np.ix_(order, order)], len(C)
    angle = 2.0 * np.pi * np.arange(p) / p
    place = np.column_stack([np.cos(angle), np.sin(angle)])
    with canvas(1, 1, 5.2, 5.2) as (figure, axes):
        axis = axes[0, 0]
        strength = np.abs(C) - 2.0 * np.eye(p)
        for i in range(p):
            for j in np.argsort(-strength[i])[: min(num_nearest, p - 1)]:
                line, weight = place[[i, j]].T, abs(C[i, j])
                axis.plot(*line, color=INK if C[i, j] > 0 else ORANGE, lw=0.3 + 2.0 * weight, alpha=0.2 + 0.6 * weight)
        axis.scatter(*place.T, s=24, color="#222222", zorder=3)
        if p <= _MAX_LABELS:
            for i, (x, y) in enumerate(place):
                axis.annotate(labels[order[i]], (1.06 * x, 1.06 * y), ha="left" if x > 0 else "right", va="center")
        axis.set_aspect("equal")
        axis.set_axis_off()
        axis.margins(0.25)
        if title:
            axis.set_title(title)
    return figure


def plot_shares(shares: pd.DataFrame, *, title: str = "") -> Figure:
    """Draw what outputs are made of as stacked bars.

    Parameters
    ----------
    shares
        A row for each output and a column for each part, such as `model.explained()`.
    title
        Title.
    """
    values = as_columns("shares", shares.to_numpy(), len(shares))
    order = np.argsort(-values[:, 0], kind="stable")
    with canvas(1, 1, 6.0, 3.4) as (figure, axes):
        axis, below = axes[0, 0], np.zeros(len(values))
        for column, name in enumerate(shares.columns):
            part = values[order, column]
            axis.bar(range(len(part)), part, bottom=below, width=0.9, color=_COLOURS[column % 7], label=str(name))
            below = below + part
        axis.set(ylabel="share of variance", xticks=[], ylim=(0.0, 1.0))
        if len(values) <= _MAX_LABELS:
            axis.set_xticks(range(len(values)), [str(shares.index[i]) for i in order], rotation=90)
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        if title:
            axis.set_title(title)
    return figure


def _square(correlation: ArrayLike, names: Sequence[Hashable] | None) -> tuple[np.ndarray, list[str]]:
    given = list(correlation.columns) if names is None and isinstance(correlation, pd.DataFrame) else names
    C = np.asarray(correlation, dtype=np.float64)
    if C.ndim != 2 or C.shape[0] != C.shape[1] or len(C) < 2 or not np.isfinite(C).all():
        raise DataError(f"correlation has shape {C.shape}; give a square matrix of at least two outputs without gaps.")
    labels = list(map(str, range(len(C)) if given is None else given))
    if len(labels) != len(C):
        raise DataError(f"names has {len(labels)} entries for {len(C)} outputs; give one for each.")
    return C, labels


def _clustered(C: np.ndarray) -> np.ndarray:
    """An order in which outputs that are alike follow each other: leaves of an average-linkage tree."""
    distance = np.clip(1.0 - 0.5 * (C + C.T), 0.0, None)
    np.fill_diagonal(distance, 0.0)
    return leaves_list(linkage(squareform(distance, checks=False), "average"))
