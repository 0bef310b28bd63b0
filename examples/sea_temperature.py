"""
Places that were never measured
===============================

Months are the inputs, places in the ocean the outputs. Half of the places are held out entirely and predicted from
latitude and longitude alone; then the same model gets four months of observations at each.
"""

import os
from pathlib import Path

import numpy as np

import manygp
from manygp import plots

rng = np.random.default_rng(0)
months = np.arange(24.0)[:, None]
path = Path(os.environ.get("MANYGP_DATA", ".")) / "ersstv5_2010_2020.nc"

if path.exists():
    import xarray as xr

    field = xr.open_dataset(path)["sst"][:24].sel(lat=slice(60, 20), lon=slice(280, 350))
    cells = field.stack(cell=("lat", "lon")).dropna("cell")
    places, temperatures = np.array(cells["cell"].to_numpy().tolist()), cells.to_numpy().astype(float)
else:
    places = np.column_stack([rng.uniform(20, 60, 400), rng.uniform(280, 350, 400)])
    north, east = np.radians(places).T
    season = np.cos(2 * np.pi * (months - 8 + 2 * np.sin(3 * east)) / 12)
    temperatures = 30 * np.cos(north) + 2 * np.sin(5 * east + 3 * north) + 6 * np.sin(north) * season
known, new = np.split(rng.permutation(len(places)), [len(places) // 2])
model = manygp.TLVMOGP(coordinate_system="sphere", latent_dim=6, num_inducing=150, epochs=6)
model.fit(months, temperatures[:, known], output_coordinates=places[known])

dist = model.predict_new_outputs(months, output_coordinates=places[new])
scores = dist.score(temperatures[:, new])
print(f"{len(new)} new places: error {scores['mse'] ** 0.5:.2f} °C, 90% intervals contain {scores['coverage90']:.0%}")

few = np.where(np.arange(24)[:, None] % 6 == 0, temperatures[:, new], np.nan)
adapted = model.adapt(months, few, output_coordinates=places[new], output_names=[f"new {i}" for i in new])
after = adapted.evaluate(months, temperatures[:, new], outputs=[f"new {i}" for i in new])
print(f"with four months of each: error {after['mse'] ** 0.5:.2f} °C")

july = {"truth": temperatures[6, new], "predicted from coordinates": dist.mean[6]}
figure = plots.plot_map(*places[new].T[::-1], july, uncertainty={"uncertainty": dist.std[6]}, unit="°C")
