"""
A robot arm with lost readings
==============================

Many inputs, few outputs: seven torques of an arm depend on position, velocity and acceleration of its joints. Half of
the readings are lost. The torques that were measured help to predict those that were not, and neighbours keep fine
detail.
"""

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

import manygp
from manygp import plots

rng = np.random.default_rng(0)

# Three joints move smoothly; inertia, friction and gravity make torques, and each motor takes a share of every joint.
time = np.linspace(0.0, 60.0, 400)
waves = [np.sin(np.outer(time, rng.uniform(0.3, 1.2, 3)) + rng.uniform(0, 6, 3)) for _ in range(2)]
position = waves[0] + 0.5 * waves[1]
velocity = np.gradient(position, time, axis=0)
acceleration = np.gradient(velocity, time, axis=0)
X = np.hstack([position, velocity, acceleration])
joints = acceleration * (1.5 + np.cos(position)) + 0.3 * np.tanh(4 * velocity) + 2.0 * np.sin(position)
complete = joints @ rng.normal(size=(3, 7)) + 0.05 * rng.normal(size=(400, 7))
lost = rng.random(complete.shape) < 0.5
torques = np.where(lost, np.nan, complete)

model = manygp.TLVMOGP(num_inducing=80, epochs=10, progress=False).fit(X, torques)
dist = model.predict_dist(X)
scores = dist.score(np.where(lost, complete, np.nan))

trees = [
    HistGradientBoostingRegressor().fit(X[~gap], y[~gap]).predict(X) for y, gap in zip(complete.T, lost.T, strict=True)
]
boosted = np.mean((np.stack(trees, axis=1) - complete)[lost] ** 2)
print(f"lost torques: MSE {scores['mse']:.4f}, boosted trees {boosted:.4f}, noise alone 0.0025")
print(f"90% intervals contain {scores['coverage90']:.0%}")
axes = plots.plot_reliability(dist, np.where(lost, complete, np.nan))
figure = axes.figure
