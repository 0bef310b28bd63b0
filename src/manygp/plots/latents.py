"""The latent map: outputs that behave alike lie close together."""

import textwrap
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manygp.errors import DataError
from manygp.plots.canvas import INK, VALUES, Figure, as_columns, canvas

# Okabe and Ito's palette, and two greys.
_GROUPS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000", "#777777", "#bbbbbb")
# Characters of the title above one panel.
_TITLE_WIDTH = 40


def plot_latents(
    latent_mean: ArrayLike,
    colours: Mapping[str, ArrayLike] | None = None,
    *,
    names: Sequence[Hashable] | None = None,
    title: str = "",
    size: float | None = None,
) -> Figure:
    """Draw the outputs in the plane in which their latents vary most.

    The model is blind to rotations of the latent space, so the plane is that of the first two principal axes; its
    directions carry no meaning of their own, only distances do.

    Parameters
    ----------
    latent_mean
        Means of the latents, shape (p, h); `latent_mean_` of a fitted model.
    colours
        What to colour the outputs by: a panel for each entry, values of shape (p,) by their label; numbers on a colour
        bar, or names of up to ten groups.
    names
        Names of the outputs, written beside their points.
    title
        Title above all panels.
    size
        Area of a marker in square points; chosen from the number of outputs unless given.

    Returns
    -------
    Figure
        The panels in one row.
    """
    latents = as_columns("latent_mean", latent_mean, len(np.atleast_1d(np.asarray(latent_mean))))
    if not np.isfinite(latents).all():
        raise DataError("latent_mean holds values that are not finite; fit the model again or leave those outputs out.")
    plane, shares = _principal_plane(latents)
    groups = {name: np.asarray(values).astype(str) for name, values in (colours or {}).items() if _is_text(values)}
    for name, labels in groups.items():
        if labels.shape != (len(latents),) or len(np.unique(labels)) > len(_GROUPS):
            raise DataError(
                f"{name} has shape {labels.shape} and {len(np.unique(labels))} names; give one of ten for each."
            )
    numbers = {name: values for name, values in (colours or {}).items() if name not in groups}
    panels = groups | {name: as_columns(name, values, len(latents))[:, 0] for name, values in numbers.items()}
    area = size if size is not None else float(np.clip(18_000 / max(len(latents), 1), 3, 60))
    count = max(len(panels), 1)
    with canvas(1, count, 4.6, 4.2, sharex=True, sharey=True) as (figure, axes):
        if not panels:
            axes[0, 0].scatter(plane[:, 0], plane[:, 1], s=area, color=INK, alpha=0.7, lw=0)
        for axis, (name, values) in zip(axes.flat, panels.items(), strict=False):
            if name in groups:
                for colour, group in zip(_GROUPS, np.unique(values), strict=False):
                    chosen = plane[values == group]
                    axis.scatter(chosen[:, 0], chosen[:, 1], s=area, color=colour, lw=0, label=group)
                axis.legend(
                    title=name,
                    loc="lower left",
                    bbox_to_anchor=(0.0, 1.0),
                    ncols=5,
                    markerscale=max(1.0, 5.0 / area**0.5),
                    columnspacing=1.0,
                    handletextpad=0.1,
                )
                continue
            drawn = axis.scatter(plane[:, 0], plane[:, 1], c=values, s=area, cmap=VALUES, lw=0)
            bar = figure.colorbar(drawn, ax=axis, location="top", aspect=30, shrink=0.9, pad=0.02)
            bar.set_label(name)
        for axis in axes.flat:
            for point, text in zip(plane, names or (), strict=False):
                axis.annotate(str(text), point, (3, 3), textcoords="offset points", fontsize=7, color="#444444")
            axis.set_xlabel(f"first principal axis ({100 * shares[0]:.0f}% of the spread)")
            axis.grid()
        axes[0, 0].set_ylabel(f"second principal axis ({100 * shares[1]:.0f}%)")
        if title:
            figure.suptitle(textwrap.fill(title, _TITLE_WIDTH * count))
    return figure


def _is_text(values: ArrayLike) -> bool:
    return np.asarray(values).dtype.kind in "OUS"


def _principal_plane(latents: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates along the first two principal axes, shape (p, 2), and the share of the variance of each."""
    centred = latents - latents.mean(axis=0)
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    shares = np.pad(s**2, (0, 2))[:2] / max(float((s**2).sum()), 1e-300)
    return np.pad(U * s, ((0, 0), (0, 2)))[:, :2], shares
