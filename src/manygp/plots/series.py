"""Outputs over a one-dimensional input."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manygp.data.numbers import as_numbers
from manygp.errors import DataError
from manygp.plots.canvas import INK, ORANGE, Axes, Figure, as_columns, canvas
from manygp.prediction import Prediction

# More panels than this are no picture.
_MOST_PANELS = 60
_Band = tuple[NDArray[np.float64], NDArray[np.float64]]


def plot_series(
    x: Any,
    mean: ArrayLike | None = None,
    interval: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    observed: ArrayLike | None = None,
    held_out: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    data_x: ArrayLike | None = None,
    names: Sequence[Hashable] | None = None,
    level: float = 0.9,
    x_label: str | None = None,
    y_label: str = "value",
) -> Figure:
    """Draw a few outputs over their input, one panel for each, with intervals and data.

    Parameters
    ----------
    x
        A `Prediction` over one input, which brings means, intervals, names and dates along; or its inputs, numbers or
        dates, shape (n,) or (n, 1).
    mean
        Predicted means, shape (n, k) for k panels.
    interval
        Lower and upper ends, each of the shape of `mean`; what `Prediction.interval(level)` returns.
    observed, held_out
        Values at `data_x` that were fitted and that were kept back, shape (m, k), NaN where there is none.
    truth
        Noise-free values at `data_x`, where they are known.
    data_x
        Inputs of the data, shape (m,) or (m, 1); those of the prediction unless given.
    names
        Titles of the panels.
    level
        The probability of the interval of a `Prediction`; of a given interval, only named in the legend.
    x_label, y_label
        What the axes measure, with units.

    Returns
    -------
    Figure
        One row of at most three panels after another.
    """
    if isinstance(x, Prediction):
        if len(x.shape) != 2 or x.inputs.shape[1] != 1 or x.shape[1] > _MOST_PANELS:
            raise DataError(
                f"{x!r} cannot be drawn as series, which take one input and at most {_MOST_PANELS} outputs; predict "
                "fewer with outputs=."
            )
        column = x._rows.iloc[:, 0]
        mean, interval, names = x.mean, x.interval(level), x.output_names if names is None else names
        x_label = x_label or (None if isinstance(column.name, int) else str(column.name))
        x = column.to_numpy()
    if mean is None:
        raise DataError("plot_series got inputs without means; give a Prediction, or inputs and means.")
    x_label = x_label or "input"
    grid = _as_line("x", x)
    points = grid if data_x is None else _as_line("data_x", data_x)
    centre = as_columns("mean", mean, len(grid))
    count = centre.shape[1]
    # A number alone is no title.
    names = range(count) if names is None else names
    titles = [f"output {name}" if isinstance(name, int | np.integer) else str(name) for name in names]
    if len(titles) != count:
        raise DataError(f"{len(titles)} names were given for {count} series; give one for each.")
    ends = None if interval is None else _as_band(interval, centre.shape)
    dots = {
        "observed": None if observed is None else as_columns("observed", observed, len(points)),
        "held out": None if held_out is None else as_columns("held_out", held_out, len(points)),
        "truth": None if truth is None else as_columns("truth", truth, len(points)),
    }
    columns = min(count, 3)
    rows = -(-count // columns)
    width = 9.0 if columns == 1 else 4.2
    with canvas(rows, columns, width, 2.8, sharex=True) as (figure, axes):
        for j, axis in enumerate(axes.flat):
            if j >= count:
                axis.set_visible(False)
                continue
            band = None if ends is None else (ends[0][:, j], ends[1][:, j])
            _draw(axis, grid, centre[:, j], band, points, {k: v[:, j] for k, v in dots.items() if v is not None}, level)
            axis.set_title(titles[j])
        figure.supxlabel(x_label, fontsize=10)
        figure.supylabel(y_label, fontsize=10)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def _draw(
    axis: Axes,
    x: NDArray[Any],
    mean: NDArray[np.float64],
    band: _Band | None,
    points: NDArray[Any],
    dots: dict[str, NDArray[np.float64]],
    level: float,
) -> None:
    """One output: interval, mean, truth and data, in order from back to front."""
    order = np.argsort(x)
    if band is not None:
        name = f"{100 * level:g}% interval"
        axis.fill_between(x[order], band[0][order], band[1][order], color=INK, alpha=0.22, lw=0, label=name)
    axis.plot(x[order], mean[order], color=INK, lw=1.6, label="predicted mean")
    if "truth" in dots:
        order = np.argsort(points)
        axis.plot(points[order], dots["truth"][order], color="#555555", lw=1, ls=(0, (4, 2)), label="truth")
    if "observed" in dots:
        axis.plot(points, dots["observed"], "o", color="#222222", ms=3.2, label="observed")
    if "held out" in dots:
        axis.plot(points, dots["held out"], "o", mfc="white", mec=ORANGE, mew=1.2, ms=4.2, label="held out")
    axis.grid(axis="y")
    axis.margins(x=0.02)


def _as_line(name: str, values: ArrayLike) -> NDArray[Any]:
    """One input coordinate for each point, shape (n,); dates stay dates, which matplotlib writes along the axis."""
    array = np.asarray(values)
    if array.dtype.kind != "M":
        array = as_numbers(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}; series need one input, of shape (n,) or (n, 1).")
    return array


def _as_band(interval: tuple[ArrayLike, ArrayLike], shape: tuple[int, ...]) -> _Band:
    """The two ends of the interval, each of the shape of the means."""
    lower, upper = (as_columns("interval", end, shape[0]) for end in interval)
    if lower.shape != shape or upper.shape != shape:
        raise DataError(f"interval has shapes {lower.shape} and {upper.shape}; both must be {shape} as the means are.")
    return lower, upper
