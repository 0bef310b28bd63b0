"""
Patients measured at different times
====================================

A list of observations instead of a table. Twenty patients are each measured at a few times, and no two at the same
time. Every observation is a cell: when, who, how much.
"""

import numpy as np

import manygp
from manygp import plots

rng = np.random.default_rng(0)

patients = [f"patient {i:02d}" for i in range(20)]
onset, height = rng.uniform(2, 6, size=20), rng.uniform(1, 3, size=20)


def response(time, who):
    """A rise and a slow fall, at each patient's own time and height."""
    since = np.maximum(time - onset[who], 0.0)
    return height[who] * since * np.exp(-since / 2.0)


who = rng.integers(20, size=300)
time = rng.uniform(0.0, 12.0, size=300)
value = response(time, who) + 0.1 * rng.normal(size=300)

model = manygp.TLVMOGP(epochs=100).fit_cells(time[:, None], [patients[i] for i in who], value)

# The whole course of one patient with intervals, from about fifteen of its own readings and those of the others.
print(model.predict_dist(np.arange(0.0, 12.0, 2.0)[:, None], outputs="patient 07").to_frame().round(2))

# Predictions for any pairs of time and patient, in one call.
dist = model.predict_cells([[3.0], [9.0]], ["patient 00", "patient 19"])
print("mean", dist.mean.round(2), "truth", response(np.array([3.0, 9.0]), np.array([0, 19])).round(2))

grid = np.linspace(0.0, 12.0, 80)
three = model.predict_dist(grid[:, None], outputs=patients[:3])
figure = plots.plot_series(three, truth=np.stack([response(grid, i) for i in range(3)], axis=1), x_label="hour")
