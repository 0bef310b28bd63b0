"""
The mean of a region
====================

How sure the mean temperature of a region is, from the joint distribution of its stations, and as if they were
independent.
"""

import tempfile
from pathlib import Path

import numpy as np

import manygp
from manygp.data.climate import make_climate
from manygp.plots import plot_map

stations = make_climate(num_stations=60, num_months=24, random_state=0)
model = manygp.TLVMOGP(epochs=10, progress=False).fit(stations.X, stations.Y)

dist = model.predict_dist(stations.X)
region = np.where(stations.longitude > np.median(stations.longitude), "east", "west")
means = dist.mean_over("output", by=region)
frame = means.to_frame()
print(frame.head())

# The same if the errors of single stations were independent.
east = region == "east"
alone = np.sqrt(dist.variance[:, east].sum(1)) / east.sum()
together = frame.loc[frame["label"] == "east", "std"].to_numpy()
print(f"std of the mean of the east: {together.mean():.3f}, from independent cells {alone.mean():.3f}")

warm = dist.probability(above=26.5, any_over="output", num_draws=200)
print(f"probability that any station is above 26.5 °C in July: {warm.value[6]:.2f} ± {warm.error[6]:.2f}")

# A map of the means of both regions in July, and of the ends of their 90% intervals.
july = frame.groupby("label").nth(6).set_index("label").loc[region]
panels = {"lower end of 90%": july["lower90"], "mean of the region": july["mean"], "upper end of 90%": july["upper90"]}
figure = plot_map(stations.longitude, stations.latitude, panels, unit="°C", title="Mean of each region in July")
figure.savefig(Path(tempfile.gettempdir()) / "region_mean.png")
