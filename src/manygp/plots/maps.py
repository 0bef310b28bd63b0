"""Values at places: scatter maps side by side."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manygp.errors import DataError
from manygp.plots.canvas import MISSING, NOWHERE, SIGNED, VALUES, WARM, Axes, Figure, as_columns, canvas

# Characters of a line above a panel.
_TITLE_WIDTH = 30
# Cells of a grid for each place in it, at most.
_SPARSEST = 5


def plot_map(
    longitude: Any,
    latitude: ArrayLike | None = None,
    panels: Mapping[str, ArrayLike] | None = None,
    *,
    uncertainty: Mapping[str, ArrayLike] | None = None,
    error: Mapping[str, ArrayLike] | None = None,
    unit: str = "",
    title: str = "",
    size: float | None = None,
    axis_labels: tuple[str, str] | None = None,
) -> Figure:
    """Draw one map for each set of values, all on one colour scale.

    Parameters
    ----------
    longitude
        A Dataset with `mean` and `std`, or a DataArray, at one input and over two dimensions such as lat and lon, which
        is drawn by itself; or where the outputs are, in degrees, shape (p,).
    latitude
        The other coordinate, shape (p,).
    panels
        Values by title, each of shape (p,). Places on a regular grid are filled cells, white for a value that is
        missing (NaN) and grey where no panel has one, such as land; others are dots, with empty grey rings for missing
        values.
    uncertainty
        More panels, such as standard deviations, on a colour scale of their own.
    error
        More panels, such as prediction less truth, on a scale of two colours around zero. Where errors or uncertainties
        have names of panels, each name has a row: value, error, uncertainty.
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
        A row for each name, or one row of up to four panels, or rows of three.
    """
    if hasattr(longitude, "dims"):
        longitude, latitude, panels, spread, found = _of_field(longitude)
        uncertainty, unit = uncertainty or spread, unit or found["unit"]
        axis_labels = axis_labels or found["labels"]
    if latitude is None:
        raise DataError("plot_map got longitudes without latitudes; give both, or a Dataset at one input.")
    east = as_columns("longitude", longitude, np.size(longitude))[:, 0]
    north = as_columns("latitude", latitude, len(east))[:, 0]
    if not np.isfinite([east, north]).all():
        raise DataError("longitude or latitude holds values that are not finite; leave out places without one.")
    values = _checked(panels or {}, len(east))
    spreads, errors = _checked(uncertainty or {}, len(east)), _checked(error or {}, len(east))
    groups = [group for group in (values, errors, spreads) if group]
    count = sum(map(len, groups))
    if not count:
        raise DataError("No panel was given; give at least one array of values by its title.")
    somewhere: NDArray[np.bool_] = np.any([np.isfinite(panel) for group in groups for panel in group.values()], axis=0)
    is_table = any(name in values for name in (*spreads, *errors))
    if is_table:
        names = list(dict.fromkeys(name for group in groups for name in group))
        rows, columns = len(names), len(groups)
    else:
        # Few panels stand in one row; many wrap, and then the uncertainties start a row of their own.
        columns = count if count <= 4 else 3
        rows = 1 if count <= 4 else sum(-(-len(group) // columns) for group in groups)
    # A degree of longitude is shorter than one of latitude by the cosine of the latitude.
    globe = axis_labels is None
    stretch = 1.0 / np.cos(np.deg2rad(np.clip((north.min() + north.max()) / 2, -75, 75))) if globe else 1.0
    labels = axis_labels or ("longitude, °E", "latitude, °N")
    area = size if size is not None else float(np.clip(16_000 / max(len(east), 1), 3, 60))
    # Wide maps in a table would be low.
    is_wide = _panel_height(east, north, stretch, 1.0) < 0.8
    width = (3.8 if is_wide else 2.6) if is_table else 3.5
    height = _panel_height(east, north, stretch, width - 0.5) + (0.6 if is_table else 1.9)
    with canvas(rows, columns, width, height, sharex=True, sharey=True) as (figure, axes):
        flat = list(axes.flat)
        start = 0
        for column, group in enumerate(groups):
            kind = "error" if group is errors else "standard deviation" if group is spreads else ""
            style = {"s": area, "cmap": SIGNED if group is errors else WARM if group is spreads else VALUES}
            label = textwrap.fill(", ".join(filter(None, (kind, unit))), _TITLE_WIDTH)
            if is_table:
                drawn_on = [axes[names.index(name), column] for name in group]
            else:
                drawn_on = flat[start : start + len(group)]
                start += len(group) if rows == 1 else columns * -(-len(group) // columns)
            bar = axes[:, column] if is_table else None
            _draw_group(figure, drawn_on, (east, north), group, somewhere, style, label, bar)
        limits = axes[0, 0].get_xlim(), axes[0, 0].get_ylim()
        for axis in flat:
            if globe and axis.has_data():
                _draw_coasts(axis, limits)
            axis.set_aspect(stretch)
            axis.set_visible(axis.has_data())
            if not is_table or axis in axes[-1]:
                axis.set_xlabel(labels[0])
        for axis in axes[:, 0]:
            axis.set_ylabel(labels[1])
        if title:
            figure.suptitle(title)
    return figure


def _of_field(field: Any) -> tuple[Any, Any, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Places, values and standard deviations of a Dataset or DataArray over two dimensions, and their names."""
    parts = dict(field.data_vars) if hasattr(field, "data_vars") else {str(field.name or "value"): field}
    parts = {"mean": parts["mean"], **({"std": parts["std"]} if "std" in parts else {})} if "mean" in parts else parts
    first = next(iter(parts.values()), None)
    if first is None or first.ndim != 2 or any(part.dims != first.dims for part in parts.values()):
        dims = [] if first is None else list(map(str, first.dims))
        choice = f", such as .isel({dims[0]}=0)" if len(dims) == 3 else ""
        raise DataError(f"A map has two dimensions and this has {', '.join(dims) or 'none'}; choose one input{choice}.")
    rows, columns = first.dims
    north, east = np.meshgrid(first[rows].to_numpy(), first[columns].to_numpy(), indexing="ij")
    is_globe = str(rows).lower().startswith("lat") and str(columns).lower().startswith("lon")
    known = {name: part.to_numpy().reshape(-1) for name, part in parts.items()}
    spread = {"standard deviation": known.pop("std")} if "std" in known and "mean" in known else {}
    labels = None if is_globe else (str(columns), str(rows))
    return (
        east.reshape(-1),
        north.reshape(-1),
        known,
        spread,
        {"unit": str(first.attrs.get("units", "")), "labels": labels},
    )


def _as_grid(east: NDArray[np.float64], north: NDArray[np.float64], values: NDArray[np.float64]) -> Any:
    """Coordinates and values of filled cells, where places are on an even grid that they fill in good part."""
    x, column = _on_lattice(east)
    y, row = _on_lattice(north)
    if min(len(x), len(y)) < 2 or _SPARSEST * len(east) < len(x) * len(y):
        return None
    here = np.zeros((len(y), len(x)), dtype=np.bool_)
    here[row, column] = True
    if (here[1:] & here[:-1]).sum() + (here[:, 1:] & here[:, :-1]).sum() < len(east) / 2:
        # Places that do not touch are easier to see as dots.
        return None
    field = np.full(here.shape, np.nan)
    field[row, column] = values
    return x, y, np.ma.masked_invalid(field)


def _on_lattice(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Even steps that hold all values, and the step of each; nothing if there are no such steps."""
    known = np.unique(values.round(6))
    if len(known) < 2:
        return known, np.zeros(len(values), dtype=np.int64)
    step = float(np.diff(known).min())
    position = (values - known[0]) / step
    if np.abs(position - position.round()).max() > 0.05:
        return known[:0], np.zeros(0, dtype=np.int64)
    index = position.round().astype(np.int64)
    return known[0] + step * np.arange(index.max() + 1), index


def _draw_coasts(axis: Axes, limits: Any) -> None:
    """Coastlines, where cartopy and its data are there, and nothing otherwise."""
    try:
        from cartopy.feature import COASTLINE

        for shape in COASTLINE.geometries():
            for part in getattr(shape, "geoms", [shape]):
                axis.plot(*part.xy, color="#444444", lw=0.6, scalex=False, scaley=False)
    except (ImportError, OSError):
        return
    axis.set_xlim(limits[0])
    axis.set_ylim(limits[1])


def _panel_height(east: NDArray[np.float64], north: NDArray[np.float64], stretch: float, width: float) -> float:
    """Inches of a map that fills its width."""
    shape = stretch * (np.ptp(north) + 1.0) / (np.ptp(east) + 1.0)
    return float(np.clip(width * shape, 0.5 * width, 2.0 * width))


def _checked(panels: Mapping[str, ArrayLike], count: int) -> dict[str, NDArray[np.float64]]:
    """Each panel's values as a (p,) array."""
    return {name: as_columns(f"panel {name!r}", values, count)[:, 0] for name, values in panels.items()}


def _draw_group(
    figure: Figure,
    axes: list[Axes],
    place: tuple[NDArray[np.float64], NDArray[np.float64]],
    group: dict[str, NDArray[np.float64]],
    somewhere: NDArray[np.bool_],
    style: dict[str, Any],
    label: str,
    bar: Any,
) -> None:
    """Panels that share a colour scale, and their colour bar, below these axes or all of theirs.

    Cells without a value are white where `somewhere` says that another panel has one.
    """
    if not group:
        return
    everything = np.concatenate(list(group.values()))
    known = everything[np.isfinite(everything)]
    # A few extreme places must not flatten the colours of all others; the bar's arrows say that they exist.
    low, high = np.percentile(known, [1, 99]) if len(known) else (0.0, 1.0)
    if style["cmap"] == SIGNED:
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    colours = {"vmin": low, "vmax": high, "cmap": style["cmap"]}
    for axis, (name, values) in zip(axes, group.items(), strict=True):
        seen, grid = np.isfinite(values), _as_grid(*place, values)
        if grid is not None:
            axis.set_facecolor(NOWHERE)
            if (somewhere & ~seen).any():
                x, y, missing = _as_grid(*place, np.where(somewhere & ~seen, 1.0, np.nan))
                axis.pcolormesh(x, y, missing, shading="nearest", cmap=MISSING)
            drawn: Any = axis.pcolormesh(*grid, shading="nearest", **colours)
        else:
            axis.scatter(place[0][~seen], place[1][~seen], s=style["s"], fc="none", ec="#c8c8c8", lw=0.4)
            drawn = axis.scatter(place[0][seen], place[1][seen], c=values[seen], s=style["s"], lw=0, **colours)
        axis.set_title(textwrap.fill(name, _TITLE_WIDTH, break_on_hyphens=False), fontsize="medium")
    shrink = 0.9 if len(axes) == 1 or bar is not None else 0.5
    count = 1 if bar is not None else min(len(axes), 4)
    figure.colorbar(
        drawn,
        ax=axes if bar is None else list(bar),
        label=label,
        location="bottom",
        shrink=shrink,
        aspect=28 * shrink * count,
        pad=0.02,
        extend="both",
    )
