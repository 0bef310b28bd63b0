"""Figures of data, predictions and latents.

Functions take what people have: predictions, Datasets, frames, or plain arrays. Those of several panels return a
matplotlib `Figure`; those of one panel take `ax=` and return the axes. Nothing is shown, no global state is touched.
Colours are safe for colour-blind readers. Needs the extra `plots`.
"""

from manygp.plots.canvas import Figure
from manygp.plots.checks import plot_gaps, plot_pit, plot_reliability, plot_residuals
from manygp.plots.counts import plot_counts
from manygp.plots.history import plot_history
from manygp.plots.latents import plot_latents
from manygp.plots.maps import plot_map
from manygp.plots.relations import plot_correlation, plot_network, plot_shares
from manygp.plots.series import plot_series

__all__ = [
    "Figure",
    "plot_correlation",
    "plot_counts",
    "plot_gaps",
    "plot_history",
    "plot_latents",
    "plot_map",
    "plot_network",
    "plot_pit",
    "plot_reliability",
    "plot_residuals",
    "plot_series",
    "plot_shares",
]
