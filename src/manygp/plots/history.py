"""How a fit went: the bound and its terms over the epochs."""

import numpy as np

from manygp.errors import DataError
from manygp.plots.canvas import INK, ORANGE, Figure, canvas
from manygp.training import History

_PANELS = {
    "bound": "bound",
    "expected_log_lik": "expected log likelihood",
    "kl_u": "KL of the inducing values",
    "kl_h": "KL of the latents",
}


def plot_history(history: History) -> Figure:
    """Draw the bound and its terms over the epochs.

    The first epochs climb so far that they would hide the rest, so the axes cover what follows the first tenth of
    the run.

    Parameters
    ----------
    history
        `history_` of a fitted model.

    Returns
    -------
    Figure
        One panel for each term, in a row.
    """
    if not len(history):
        raise DataError("The history is empty; fit a model for at least one epoch.")
    epochs = np.asarray(history["epoch"])
    with canvas(1, len(_PANELS), 3.5, 2.9) as (figure, axes):
        for axis, (name, title) in zip(axes.flat, _PANELS.items(), strict=True):
            values = np.asarray(history[name])
            colour = INK if name == "bound" else ORANGE
            axis.plot(epochs, values, color=colour, lw=1.5, marker="o" if len(values) == 1 else None)
            settled = values[len(values) // 10 :]
            if (spread := np.ptp(settled)) > 0:
                axis.set_ylim(settled.min() - 0.08 * spread, settled.max() + 0.08 * spread)
            axis.set_title(f"{title}, nats")
            axis.set_xlabel("epoch")
            axis.grid()
    return figure
