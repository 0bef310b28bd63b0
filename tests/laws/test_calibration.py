"""Intervals are honest on data drawn from the model's own prior; `benchmarks.calibration` asks the same of 20 draws."""

import numpy as np
from benchmarks.calibration import coverage


def test_intervals_hold_what_they_promise() -> None:
    draws = [coverage(seed, epochs=100) for seed in range(2)]
    for level in draws[0]:
        assert abs(np.mean([draw[level] for draw in draws]) - level) < 0.06
