"""Values at places: scatter maps side by side."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manygp.errors import DataError
from manygp.plots.canvas import VALUES, WARM, Axes, Figure, as_columns, canvas

__all__ = ["plot_map"]

# Characters of a line above a panel.
_TITLE_WIDTH = 30


def plot_map(
    longitude: ArrayLike,
    latitude: ArrayLike,
    panels: Mapping[str, ArrayLike],
    *,
    uncertainty: Mapping[str, ArrayLike] | None = None,
    unit: str = "",
    title: str = "",
    size: float | None = None,
    axis_labels: tuple[str, str] | None = None,
) -> Figure:
    """Draw one map for each set of values, all on one colour scale.

    Parameters
    ----------
    longitude, latitude
        Where the outputs are, in degrees, shape (p,).
    panels
        Values by title, each of shape (p,); places without a value (NaN) are shown as empty grey rings.
    uncertainty
        More panels, such as standard deviations, on a colour scale of their own.
    unit
        Unit of all values, for the colour bars.
    title
        Title above all panels.
    size
        Area of a marker in square points; chosen from the number of places unless given.
    axis_labels
        For places that are not on the globe, such as spots of a slide: what the two axes are, in equal units.

    Returns
    -------
    Figure
        One row of up to four panels, or rows of three.
    """
    east = as_columns("longitude", longitude, np.size(longitude))[:, 0]
    north = as_columns("latitude", latitude, len(east))[:, 0]
    if not np.isfinite([east, north]).all():
        raise DataError("longitude or latitude holds values that are not finite; leave out places without one.")
    values = _checked(panels, len(east))
    spreads = _checked(uncertainty or {}, len(east))
    count = len(values) + len(spreads)
    if not count:
        raise DataError("No panel was given; give at least one array of values by its title.")
    # Few panels stand in one row; many wrap, and then the uncertainties start a row of their own.
    columns = count if count <= 4 else 3
    rows = 1 if count <= 4 else -(-len(values) // columns) + -(-len(spreads) // columns)
    # A degree of longitude is shorter than one of latitude by the cosine of the latitude.
    globe = axis_labels is None
    stretch = 1.0 / np.cos(np.deg2rad(np.clip((north.min() + north.max()) / 2, -75, 75))) if globe else 1.0
    labels = axis_labels or ("longitude, °E", "latitude, °N")
    area = size if size is not None else float(np.clip(16_000 / max(len(east), 1), 3, 60))
    height = _panel_height(east, north, stretch)
    with canvas(rows, columns, 3.5, height, sharex=True, sharey=True) as (figure, axes):
        flat = list(axes.flat)
        start = len(values) if rows == 1 else columns * -(-len(values) // columns)
        style = {"s": area, "linewidths": 0}
        _draw_group(figure, flat[: len(values)], (east, north), values, {**style, "cmap": VALUES}, unit)
        label = f"standard deviation, {unit}".rstrip(", ")
        _draw_group(figure, flat[start : start + len(spreads)], (east, north), spreads, {**style, "cmap": WARM}, label)
        for axis in flat:
            axis.set_aspect(stretch)
            axis.set_visible(axis.has_data())
            axis.set_xlabel(labels[0])
        for axis in axes[:, 0]:
            axis.set_ylabel(labels[1])
        if title:
            figure.suptitle(title)
    return figure


def _panel_height(east: NDArray[np.float64], north: NDArray[np.float64], stretch: float) -> float:
    """Inches for a panel with its title and colour bar, so that the map fills its width."""
    shape = stretch * (np.ptp(north) + 1.0) / (np.ptp(east) + 1.0)
    return float(np.clip(3.0 * shape, 1.5, 6.0)) + 1.9


def _checked(panels: Mapping[str, ArrayLike], count: int) -> dict[str, NDArray[np.float64]]:
    """Each panel's values as a (p,) array."""
    return {name: as_columns(f"panel {name!r}", values, count)[:, 0] for name, values in panels.items()}


def _draw_group(
    figure: Figure,
    axes: list[Axes],
    place: tuple[NDArray[np.float64], NDArray[np.float64]],
    group: dict[str, NDArray[np.float64]],
    style: dict[str, Any],
    label: str,
) -> None:
    """Panels that share a colour scale, and their colour bar."""
    if not group:
        return
    everything = np.concatenate(list(group.values()))
    known = everything[np.isfinite(everything)]
    # A few extreme places must not flatten the colours of all others; the bar's arrows say that they exist.
    low, high = np.percentile(known, [1, 99]) if len(known) else (0.0, 1.0)
    for axis, (name, values) in zip(axes, group.items(), strict=True):
        seen = np.isfinite(values)
        axis.scatter(place[0][~seen], place[1][~seen], s=style["s"], fc="none", ec="#c8c8c8", lw=0.4)
        drawn = axis.scatter(place[0][seen], place[1][seen], c=values[seen], vmin=low, vmax=high, **style)
        axis.set_title(textwrap.fill(name, _TITLE_WIDTH, break_on_hyphens=False), fontsize="medium")
    shrink = 0.9 if len(axes) == 1 else 0.5
    figure.colorbar(
        drawn,
        ax=axes,
        label=label,
        location="bottom",
        shrink=shrink,
        aspect=28 * shrink * min(len(axes), 4),
        pad=0.02,
        extend="both",
    )
