"""
The mean of a region
====================

An honest interval, beside the one that adds up variances of single cells.
"""

import tempfile
from pathlib import Path

import numpy as np

import manygp
from manygp import plots
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

<<<<<<< HEAD
wide = frame.pivot(columns="label", values=["mean", "std"], index=frame.columns[0])
mean, margin = wide["mean"], 1.645 * wide["std"]
figure = plots.plot_series(wide.index, mean, (mean - margin, mean + margin), names=mean.columns, y_label="°C")
=======
# A map of both: each place in July, and the mean of its region with half the width of its interval.
july = frame.groupby("label").nth(6).set_index("label").loc[region]
figure = plot_map(
    stations.longitude,
    stations.latitude,
    {"stations": dist.mean[6], "means of regions": july["mean"]},
    uncertainty={"± of the means, 90%": (july["upper90"] - july["lower90"]) / 2},
    unit="°C",
)
figure.savefig(Path(tempfile.gettempdir()) / "region_mean.png")
>>>>>>> trust
