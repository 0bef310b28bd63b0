"""
Places that were never measured
===============================

Months of sea surface temperatures are the inputs, cells of the ocean the outputs. Half of the cells are held out
altogether, and predicted from latitude and longitude alone; then four months of each are given to the same model.
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
print(f"{len(new)} cells never seen: error {scores['mse'] ** 0.5:.2f}, 90% intervals hold {scores['coverage90']:.0%}")

few = np.where(np.arange(24)[:, None] % 6 == 0, temperatures[:, new], np.nan)
adapted = model.adapt(months, few, output_coordinates=places[new], output_names=[f"new {i}" for i in new])
after = adapted.evaluate(months, temperatures[:, new], outputs=[f"new {i}" for i in new])
print(f"with four months of each: error {after['mse'] ** 0.5:.2f} degrees")

july = {"truth": temperatures[6, new], "predicted from neighbours": dist.mean[6]}
figure = plots.plot_map(*places[new].T[::-1], july, uncertainty={"its uncertainty": dist.std[6]}, unit="°C")
