"""
A daily feed
============

A model that was fitted once is updated day after day with new readings, gaps and a mistake included.
"""

import time

import numpy as np

import manygp
from manygp import plots

rng = np.random.default_rng(0)
days, sensors, first = 150, 8, 120
X = np.arange(days, dtype=float)[:, None]
weather = np.cumsum(rng.standard_normal((days, 2)), axis=0) * 0.3
truth = np.sin(X / 20.0) + weather @ rng.uniform(0.3, 1.0, (2, sensors))
Y = truth + 0.1 * rng.standard_normal(truth.shape)
Y[rng.random(Y.shape) < 0.3] = np.nan

began = time.perf_counter()
model = manygp.TLVMOGP(num_inducing=50, num_neighbors=16, epochs=30, progress=False).fit(X[:first], Y[:first])
fit_seconds = time.perf_counter() - began

errors, seconds = [], []
for day in range(first, days):
    today, values = X[day : day + 1], Y[day : day + 1].copy()
    began = time.perf_counter()
    if day == first + 10:
        model = model.update(today, values + 4.0)  # wrong readings, noticed the day after
        print(f"day {day}: surprise {model.surprise_:.1f} nats, a new fit advised: {model.refit_advised_}")
        model = model.update(forget=(today, values))
    model = model.update(today, values)
    seconds.append(time.perf_counter() - began)
    errors.append((model.predict(today) - truth[day])[np.isnan(values)])

error = np.sqrt(np.mean(np.concatenate(errors) ** 2))
alone = np.sqrt(np.mean((truth[first - 1] - truth[first:]) ** 2))
print(f"fit {fit_seconds:.1f} s, a day {np.mean(seconds):.2f} s")
print(f"error of gaps {error:.2f}; that of the last day of the fit {alone:.2f}")
figure = plots.plot_series(
    model.predict_dist(X, outputs=range(3)), observed=Y[:, :3], truth=truth[:, :3], x_label="day"
)
