"""What error bars of a plain method are worth."""

import numpy as np
from scipy.stats import norm

from manygp.data.table import FloatArray

__all__ = ["normal_scores"]


def normal_scores(error: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Negative log density, CRPS and probability integral transform of truth under N(truth - error, std²)."""
    z = error / std
    # ∫ (Φ(t) - 1[t > z])² dt = z (2 Φ(z) - 1) + 2 φ(z) - 1/√π, times the unit
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    return -norm.logpdf(error, scale=std), crps, norm.cdf(z)
