"""Draw the picture of the README: sea surface temperatures with clouds, filled.

Reads `ersstv5_2010_2020.nc` (NOAA's Extended Reconstructed Sea Surface Temperature, version 5) from the folder that
MANYGP_DATA names. Clouds are made up: they hide a tenth of the cells one by one, and four large patches every month.
"""

import os
from pathlib import Path

import numpy as np
import xarray as xr

import manygp
from manygp import plots

MONTH = "2014-03-01"
rng = np.random.default_rng(0)
path = Path(os.environ["MANYGP_DATA"]) / "ersstv5_2010_2020.nc"
sea = xr.open_dataset(path)["sst"].sel(time=slice("2010", "2015"), lat=slice(66, 4), lon=slice(262, 358))
sea = sea.assign_coords(lon=sea["lon"] - 360).astype(float)

hidden = rng.random(sea.shape) < 0.1
north, west = np.meshgrid(sea["lat"], sea["lon"], indexing="ij")
for month in range(sea.sizes["time"]):
    for _ in range(4):
        centre, size = (rng.uniform(5, 65), rng.uniform(-90, -5)), rng.uniform(4, 9)
        hidden[month] |= ((north - centre[0]) / size) ** 2 + ((west - centre[1]) / (2 * size)) ** 2 < 1
seen = sea.where(~hidden)

model = manygp.TLVMOGP(epochs=15).fit(seen)
filled = model.predict_dist().to_xarray()
missed = seen.isnull() & sea.notnull()
error = np.sqrt(((filled["mean"] - sea) ** 2).where(missed).mean())
inside = ((filled["lower"] <= sea) & (sea <= filled["upper"])).where(missed).sum() / missed.sum()
share, error, inside = float(missed.sum() / sea.notnull().sum()), float(error), float(inside)
print(f"{share:.0%} of the sea is hidden: error {error:.2f} °C, 90% intervals contain {inside:.1%}")

at = {"time": MONTH}
mean = filled["mean"].sel(at)
figure = plots.plot_map(
    west.ravel(),
    north.ravel(),
    {"observed (white: clouds, grey: land)": seen.sel(at).values.ravel(), "filled": mean.values.ravel()},
    error={"error of the filled field": (mean - sea.sel(at)).values.ravel()},
    uncertainty={"its standard deviation": filled["std"].sel(at).values.ravel()},
    unit="°C",
    title="Sea surface temperature, March 2014",
)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
