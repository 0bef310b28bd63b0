"""How often counts occur."""

import numpy as np
from numpy.typing import ArrayLike

from manygp.data.numbers import as_numbers
from manygp.errors import DataError
from manygp.plots.canvas import INK, ORANGE, Figure, canvas

_NUM_BINS = 60


def plot_counts(values: ArrayLike, *, title: str = "", label: str = "count") -> Figure:
    """Draw a histogram of counts with both axes in powers of ten; zeros have a bar of their own.

    Parameters
    ----------
    values
        Counts of any shape; NaN is left out.
    title
        Title above the panel.
    label
        What the counts are of.

    Returns
    -------
    Figure
        One panel.
    """
    counts = as_numbers(values, "values").reshape(-1)
    counts = counts[~np.isnan(counts)]
    if not len(counts) or counts.min() < 0 or np.isinf(counts).any():
        raise DataError("Values are missing, infinite or below zero; give at least one count.")
    zeros = int((counts == 0).sum())
    # Bins that end halfway between whole numbers, of equal width in the logarithm once that is wider than one.
    ends = np.unique(np.floor(np.geomspace(1, max(counts.max(), 2) + 1, _NUM_BINS))) - 0.5
    with canvas(1, 1, 6.5, 3.6) as (figure, axes):
        axis = axes[0, 0]
        share = f"zeros: {100 * zeros / len(counts):.1f}%"
        axis.bar([0.0], [zeros], width=0.8, color=ORANGE, label=share)
        axis.hist(counts[counts > 0], bins=np.r_[ends, max(counts.max(), 2) + 0.5], color=INK, label="above zero")
        axis.set_xscale("symlog", linthresh=1.0)
        axis.set_yscale("log")
        axis.set_xlim(-0.6, None)
        axis.set_xlabel(label)
        axis.set_ylabel("cells")
        axis.legend()
        axis.set_title(title or f"largest {counts.max():,.0f}")
    return figure
