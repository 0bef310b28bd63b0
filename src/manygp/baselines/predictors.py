"""Which other outputs tell about an output."""

import numpy as np

from manygp.data.table import FloatArray, IntArray

__all__ = ["closest_outputs"]

# Rows that two outputs have in common before their correlation counts in full.
_ENOUGH_ROWS = 10.0


def closest_outputs(Y: FloatArray, number: int) -> IntArray:
    """The other outputs most correlated with each output over the rows that both have, shape (p, number) at most."""
    seen = (~np.isnan(Y)).astype(np.float64)
    values = np.nan_to_num(Y)
    # r_pq = Σ y_p y_q / √(Σ y_p² Σ y_q²), all sums over common rows
    products, squares, common = values.T @ values, (values**2).T @ seen, seen.T @ seen
    correlation = products / np.sqrt(np.maximum(squares * squares.T, np.finfo(np.float64).tiny))
    closeness = np.abs(correlation) * common / (common + _ENOUGH_ROWS)
    np.fill_diagonal(closeness, -1.0)
    number = min(number, Y.shape[1] - 1)
    return np.argsort(-closeness, axis=1, kind="stable")[:, :number]
