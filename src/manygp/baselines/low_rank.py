"""Matrix completion."""

from collections.abc import Sequence

import numpy as np

from manygp.baselines.baseline import Baseline
from manygp.data import Grid, Scaling, choose_rank, factorise
from manygp.data.table import FloatArray

_RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class LowRank(Baseline):
    """Matrix completion by a masked low-rank factorisation, see `manygp.data.factorise`; inputs do not matter.

    Parameters
    ----------
    rank
        Number of factors; "auto" chooses it by cells held out in the pattern of the gaps.
    scale
        Units to work in: those of each "output", or one for all, "global", where outputs measure the same thing.
    ranks
        What "auto" chooses among.
    random_state
        Seed.
    """

    def __init__(
        self, rank: int | str = "auto", scale: str = "output", ranks: Sequence[int] = _RANKS, random_state: int = 0
    ):
        self.rank = rank
        self.scale = scale
        self.ranks = ranks
        self.random_state = random_state

    def _fill(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        table = Grid(X, Y)
        scaling = Scaling.fit(table, outputs="none")
        rng = np.random.default_rng(self.random_state)
        if self.rank == "auto":
            rank = choose_rank(table, scaling, self.ranks, rng=rng).rank
        else:
            rank = int(self.rank)
        return factorise(table, scaling, rank, rng=rng).predict()
