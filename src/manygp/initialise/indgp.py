"""How independent GPs begin: what an output returns to far from its cells."""

import numpy as np

from manygp.data import Grid, OutputScale, Scaling, Table
from manygp.data.splits import pattern_split
from manygp.errors import DataError

__all__ = ["choose_prior_scaling"]

_MIN_NOISE, _SPLIT_CELLS = 1e-4, 10_000


def choose_prior_scaling(table: Table, rng: np.random.Generator) -> Scaling:
    """Each output by its own centre and scale, or all by one: whichever predicts held-out cells better by itself.

    Far from an output's cells its GP returns to the centre. That of its own cells is best where gaps are scattered,
    but not where an output lost a stretch unlike the rest. So cells are held out in the pattern of the gaps, and the
    larger log density of Gaussian errors whose variance is the same for all cells in scaled units decides.
    """
    if not isinstance(table, Grid) or table.num_outputs == 1:
        return Scaling.fit(table, outputs="output")
    kinds: tuple[OutputScale, ...] = ("output", "global")
    losses = np.zeros(len(kinds))
    try:
        for _ in range(int(np.clip(_SPLIT_CELLS // table.num_observed, 1, 8))):
            train, held = pattern_split(table, rng)
            counts = held.count_per_output()
            for i, kind in enumerate(kinds):
                scaling = Scaling.fit(train, outputs=kind)
                error = (held.power_sums(2, scaling.y_center) / scaling.y_scale**2).sum() / counts.sum()
                # −log N(e | 0, s²σ²) with σ² the mean of e²/s²: log s + ½ log σ², and a constant
                losses[i] += counts @ np.log(scaling.y_scale) / counts.sum() + 0.5 * np.log(error + _MIN_NOISE)
    except DataError:
        # Too few cells to hold any out.
        pass
    return Scaling.fit(table, outputs=kinds[int(losses.argmin())])
