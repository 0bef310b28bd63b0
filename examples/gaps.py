"""
Gaps in sensors
===============

From a numpy table with gaps to calibrated predictions. Thirty sensors follow two common signals, each in its own
proportion. A third of the readings are lost, half of them scattered, half in long outages. The model fills the gaps
from the sensor's own readings and from those of the other sensors.
"""

import numpy as np

import manygp
from manygp import plots

rng = np.random.default_rng(0)

# Sixty times of day, thirty sensors.
X = np.linspace(0.0, 24.0, 60)[:, None]
signals = np.hstack([np.sin(2 * np.pi * X / 24), np.cos(2 * np.pi * X / 8)])
truth = 15.0 + signals @ rng.normal(size=(2, 30))
complete = truth + 0.1 * rng.normal(size=truth.shape)

# NaN means missing: one reading in six is lost at random, and every other sensor is silent for a third of the day.
lost = rng.random(truth.shape) < 1 / 6
for sensor in range(0, 30, 2):
    start = rng.integers(0, 40)
    lost[start : start + 20, sensor] = True
Y = np.where(lost, np.nan, complete)

model = manygp.TLVMOGP().fit(X, Y)

dist = model.predict_dist(X)
lower, upper = dist.interval(0.9)
inside = (lower <= complete) & (complete <= upper)
print(f"{lost.sum()} of {lost.size} readings are missing")
print(f"typical error where they are: {np.sqrt(np.mean((dist.mean - complete)[lost] ** 2)):.3f} (noise alone: 0.100)")
print(f"90% intervals contain {inside[lost].mean():.0%} of them")
print(model.evaluate(X, np.where(lost, complete, np.nan)))

few = model.predict_dist(X, outputs=[0, 2, 4])
figure = plots.plot_series(few, observed=Y[:, :6:2], held_out=np.where(lost, complete, np.nan)[:, :6:2], x_label="hour")
