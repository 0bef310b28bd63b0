"""
The mean of a region
====================

An honest interval, beside the one that adds up variances of single cells.
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

# What single cells would say if their errors had nothing to do with each other.
east = region == "east"
alone = np.sqrt(dist.variance[:, east].sum(1)) / east.sum()
together = frame.loc[frame["label"] == "east", "std"].to_numpy()
print(f"std of the mean of the east: {together.mean():.3f}, from independent cells {alone.mean():.3f}")

warm = dist.probability(above=25.0, any_over="output", num_draws=200)
print(f"a station above 25 °C in July: {warm.value[6]:.2f} ± {warm.error[6]:.2f}")

# A map of the means of regions in July, between the ends of their intervals.
july = frame.groupby("label").nth(6).set_index("label").loc[region]
panels = {"lower end, 90%": july["lower90"], "mean of the region": july["mean"], "upper end, 90%": july["upper90"]}
figure = plot_map(stations.longitude, stations.latitude, panels, unit="°C", title="July")
figure.savefig(Path(tempfile.gettempdir()) / "region_mean.png")
