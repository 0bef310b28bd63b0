"""Figures of relations between outputs."""

import numpy as np
import pandas as pd
import pytest

from manygp import DataError

pytest.importorskip("matplotlib")
from manygp import plots


def test_figures_show_outputs_in_clusters(rng):
    factors = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 50))
    C = pd.DataFrame(np.corrcoef(factors), columns=list("abcdef"))
    axis = plots.plot_correlation(C, title="alike").axes[0]
    assert {label.get_text() for label in axis.get_xticklabels()} == set("abcdef")
    assert len(plots.plot_network(C, num_nearest=2).axes[0].lines) == 12
    shares = pd.DataFrame({"shared": [0.7, 0.2], "noise": [0.3, 0.8]}, index=["a", "b"])
    assert len(plots.plot_shares(shares).axes[0].patches) == 4


def test_a_matrix_that_is_not_square_is_refused():
    with pytest.raises(DataError, match="square"):
        plots.plot_correlation(np.ones((2, 3)))
