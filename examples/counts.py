"""
Counts with size factors
========================

Twenty species are counted in 150 traps on a meadow. Each species is common where it likes the ground, and a trap
catches in proportion to the number of days that it was open. A fifth of the counts are lost.
"""

import numpy as np

import manygp
from manygp import plots

rng = np.random.default_rng(0)

places = rng.uniform(size=(150, 2))
days = rng.uniform(1.0, 10.0, size=150)
ground = np.column_stack([np.sin(5 * places[:, 0]), np.cos(5 * places[:, 1])])
rate = np.exp(ground @ rng.normal(size=(2, 20)) - rng.uniform(0.0, 2.0, size=20))
complete = rng.poisson(rate * days[:, None]).astype(float)
lost = rng.random(complete.shape) < 0.2
counts = np.where(lost, np.nan, complete)

model = manygp.TLVMOGP(likelihood="poisson", epochs=40).fit(places, counts, exposure=days)

dist = model.predict_dist(places, exposure=days)
scores = dist.score(np.where(lost, complete, np.nan))
print(f"Lost counts: nll {scores['nll']:.2f}, in their 90% intervals {scores['coverage90']:.0%}")
print(f"Species 0 most likely escapes trap {dist.zero_probability()[:, 0].argmax()}.")
per_day = model.predict(places[:3], outputs=[0, 1])
print("Expected catch of two species in a day, at three traps:")
print(per_day.round(2))

day = model.predict_dist(places, outputs=range(3))
maps = {f"species {j}": day.mean[:, j] for j in range(3)}
figure = plots.plot_map(*places.T, maps, unit="expected catch in a day", axis_labels=("east", "north"))
