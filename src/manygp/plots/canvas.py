"""The look that all figures share, and the one import of matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manygp.data.numbers import as_numbers
from manygp.errors import DataError, ManyGPError

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
except ImportError as error:
    raise ManyGPError(
        "Figures need matplotlib, which is not installed; install it with: pip install 'manygp[plots]'."
    ) from error

# Blue and vermilion of Okabe and Ito's palette, which colour-blind readers can tell apart.
INK = "#0072B2"
ORANGE = "#D55E00"
# Perceptually uniform maps: one for values, another for uncertainties so that nobody mixes them up.
VALUES = "viridis"
WARM = "magma_r"
# For errors, which have a sign.
SIGNED = "RdBu_r"
# Cells that have a value in no panel, and those that miss one in this panel.
NOWHERE, MISSING = "#dddddd", ListedColormap(["white"])

# Any: matplotlib types the keys as a list of literals that grows with its versions.
_LOOK: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.labelcolor": "#222222",
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "date.converter": "concise",
    "figure.facecolor": "white",
    "figure.titlesize": 13,
    "font.size": 10,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "xtick.color": "#444444",
    "xtick.labelsize": 9,
    "ytick.color": "#444444",
    "ytick.labelsize": 9,
}


@contextmanager
def canvas(rows: int, columns: int, width: float, height: float, **options: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure in the common look with a (rows, columns) array of axes, each `width` by `height` inches."""
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(columns * width, rows * height), dpi=150, layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)


@contextmanager
def one_axes(ax: Axes | None, width: float, height: float) -> Iterator[Axes]:
    """Axes of the caller, or those of a new figure, in the common look."""
    if ax is not None:
        with matplotlib.rc_context(_LOOK):
            yield ax
        return
    with canvas(1, 1, width, height) as (_, axes):
        yield axes[0, 0]


def as_columns(name: str, values: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Turn values into a (rows, k) float array, or say what is wrong with them."""
    array = as_numbers(values, name)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or len(array) != rows:
        raise DataError(f"{name} has shape {np.shape(values)}; it must have {rows} rows, one for each point drawn.")
    if not array.size:
        raise DataError(f"{name} has shape {np.shape(values)}, which leaves nothing to draw; give at least one value.")
    return array
