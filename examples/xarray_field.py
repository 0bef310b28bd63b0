"""
A climate field with holes
==========================

An xarray field with gaps goes in; the filled field and its intervals come back as xarray too.

Five years of monthly temperatures on a grid of latitudes and longitudes. Clouds hide a fifth of the cells, and a
corner of the map was not observed for a year. Time is the input, every place is an output.
"""

import numpy as np
import pandas as pd
import xarray as xr

import manygp
from manygp import plots

rng = np.random.default_rng(0)
time = pd.date_range("2015-01-01", periods=60, freq="MS")
lat, lon = np.linspace(60.0, 30.0, 8), np.linspace(-10.0, 30.0, 10)
grid = xr.Dataset(coords={"time": time, "lat": lat, "lon": lon})

# Seasons are stronger in the north and later in the east.
phase = 2 * np.pi * (grid["time"].dt.month - 7 - grid["lon"] / 40) / 12
truth = 25 - 0.4 * (grid["lat"] - 30) + grid["lat"] / 6 * np.cos(phase)
complete = (truth + 0.5 * rng.normal(size=truth.shape)).transpose("time", "lat", "lon").assign_attrs(units="°C")

clouds = xr.DataArray(rng.random(complete.shape) < 0.2, complete.coords)
unobserved = (grid["time"].dt.year == 2017) & (grid["lat"] > 45) & (grid["lon"] < 5)
field = complete.where(~(clouds | unobserved))

# Dimensions are (time, lat, lon): the first is the input, and the model takes it from the field.
model = manygp.TLVMOGP(epochs=20).fit(field)

filled = model.predict_dist(field["time"]).to_xarray()
lost = field.isnull()
inside = ((filled["lower"] <= complete) & (complete <= filled["upper"])).where(lost).mean()
error = np.sqrt(((filled["mean"] - complete) ** 2).where(lost).mean())
print(filled)
print(f"{int(lost.sum())} of {field.size} cells are missing; error {float(error):.2f} °C (noise alone: 0.50)")
print(f"90% intervals contain {float(inside):.0%} of them")
figure = plots.plot_map(filled.sel(time="2017-06-01"))
