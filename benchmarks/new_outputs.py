"""Sea temperatures at places never seen: from coordinates, as in the paper, and by geostatistics.

`python -m benchmarks.new_outputs [--months 24] [--case cells region]` reads ersstv5_2010_2020.nc from the folder that
MANYGP_DATA names: 10,988 cells of the ocean on a grid of two degrees. Half of them ("cells"), or all in a box of 10 by
20 degrees ("region"), are held out over all months; "few" has the cells of a part of the Pacific alone, a third of them
held out. Beside T-LVMOGP with `output_coordinates` stand the nearest cell,
inverse-distance weighting, ordinary kriging of every month by itself, and the paper's protocol, in which coordinates
are prior means of two-dimensional latent vectors. Prints one JSON line; `--quick` takes few cells and epochs.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy.stats import norm
from sklearn.neighbors import NearestNeighbors

import manygp
from manygp.data.coordinates import CoordinateMap
from manygp.data.table import FloatArray, IntArray
from manygp.variational import CoordinatePrior

BOX, PART = ((20.0, 30.0), (190.0, 210.0)), ((10.0, 50.0), (150.0, 210.0))
METHODS = ("nearest", "inverse_distance", "kriging", "paper", "coordinates")


def read_field(months: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Months (n, 1), latitudes and longitudes (p, 2) and temperatures (n, p) of the cells without ice or land."""
    with xr.open_dataset(Path(os.environ["MANYGP_DATA"]) / "ersstv5_2010_2020.nc") as data:
        sst = data["sst"].to_numpy().astype(np.float64)
        lat, lon = np.meshgrid(data["lat"].to_numpy(), data["lon"].to_numpy(), indexing="ij")
    sea = np.isfinite(sst).all(0)
    return np.arange(float(months))[:, None], np.column_stack([lat[sea], lon[sea]]).astype(float), sst[:months, sea]


def split(S: FloatArray, case: str, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Cells to train on and to predict."""
    if case == "cells":
        order = rng.permutation(len(S))
        return np.sort(order[: len(S) // 2]), np.sort(order[len(S) // 2 :])
    if case == "few":
        order = rng.permutation(np.flatnonzero(_within(S, PART)))
        return np.sort(order[len(order) // 3 :]), np.sort(order[: len(order) // 3])
    inside = np.flatnonzero(_within(S, BOX))
    # The rest is thinned as in the other case.
    rest = rng.permutation(np.setdiff1d(np.arange(len(S)), inside))[: len(S) // 2]
    return np.sort(rest), inside


def _within(S: FloatArray, box: tuple[tuple[float, float], ...]) -> np.ndarray:
    return np.logical_and.reduce([(S[:, i] >= low) & (S[:, i] <= high) for i, (low, high) in enumerate(box)])


def gaussian_scores(mean: FloatArray, variance: FloatArray, truth: FloatArray) -> dict[str, float]:
    """Scores of independent Gaussians."""
    sd = np.sqrt(variance)
    inside = np.abs(truth - mean) <= norm.ppf(0.95) * sd
    return {
        "rmse": round(float(np.sqrt(np.mean((mean - truth) ** 2))), 4),
        "nll": round(float(-norm.logpdf(truth, mean, sd).mean()), 4),
        "coverage90": round(float(inside.mean()), 4),
    }


def model_scores(dist: Any, truth: FloatArray) -> dict[str, float]:
    """Scores of a prediction."""
    scores = dist.score(truth)
    return {"rmse": round(float(np.sqrt(scores["mse"])), 4)} | {
        key: round(scores[key], 4) for key in ("nll", "coverage90")
    }


def by_neighbours(S: FloatArray, Y: FloatArray, new: FloatArray, count: int, power: float) -> FloatArray:
    """Inverse-distance weighting over the sphere; with one neighbour, the nearest cell."""
    unit = CoordinateMap.fit(S, "sphere")
    distance, near = NearestNeighbors(n_neighbors=count).fit(unit.features(S)).kneighbors(unit.features(new))
    weight = 1.0 / np.maximum(distance, 1e-12) ** power
    return np.einsum("nkj,kj->nk", Y[:, near], weight / weight.sum(1, keepdims=True))


def neighbour_scores(S: FloatArray, Y: FloatArray, new: FloatArray, truth: FloatArray, count: int) -> dict[str, float]:
    """Scores with the errors that the same method makes on cells left out of the known ones."""
    rng = np.random.default_rng(0)
    held = np.zeros(len(S), dtype=bool)
    held[rng.permutation(len(S))[: len(S) // 10]] = True
    error = by_neighbours(S[~held], Y[:, ~held], S[held], count, 1.0) - Y[:, held]
    mean = by_neighbours(S, Y, new, count, 1.0)
    return gaussian_scores(mean, np.full_like(mean, np.mean(error**2)), truth)


def kriging_scores(S: FloatArray, Y: FloatArray, new: FloatArray, truth: FloatArray) -> dict[str, float]:
    """Ordinary kriging of every month by itself: one isotropic Matern variogram by evidence, 48 neighbours."""
    sphere = CoordinateMap.fit(S, "sphere")
    places = torch.as_tensor(sphere.features(new))
    found = []
    for values in torch.as_tensor(Y).unsqueeze(-1):
        field = CoordinatePrior(sphere, len(S), 1)
        field.groups = [[0, 1, 2]]
        field.features.copy_(torch.as_tensor(sphere.features(S)))
        exact = torch.zeros_like(values)
        field.learn(values, exact, 0, freedoms=(1e9,), num_kernels=1)
        # One variance everywhere, such that errors of cells predicted from the others have it.
        mean, variance = field.conditional(values, exact)
        field.parameters_of[1] *= ((values - mean).square() / variance).mean()
        found.append(field.conditional(values, exact, places))
    mean, variance = (torch.cat(parts, -1).T for parts in zip(*found, strict=True))
    return gaussian_scores(mean.numpy(), variance.numpy(), truth)


def run(case: str, methods: list[str], months: int, seed: int, quick: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """All methods on one way to hold cells out."""
    rng = np.random.default_rng(seed)
    X, S, Y = read_field(months)
    old, new = split(S, case, rng)
    if quick:
        old, new = old[::12], new[::12]
    truth, known = Y[:, new], Y[:, old]
    sizes = {name: value for name, value in settings.items() if name != "epochs"}
    common = {"random_state": seed, "progress": False, "epochs": 5 if quick else settings.get("epochs", "auto")}
    result: dict[str, Any] = {"known": len(old), "new": len(new)}
    for method in methods:
        started = time.perf_counter()
        if method in ("nearest", "inverse_distance"):
            scores = neighbour_scores(S[old], known, S[new], truth, 1 if method == "nearest" else 8)
        elif method == "kriging":
            scores = kriging_scores(S[old], known, S[new], truth)
        elif method == "paper":
            published = {"latent_dim": 2, "num_inducing": 100 if quick else 500}
            model = manygp.TLVMOGP(**published, latent_prior_mean=S[old], latent_prior_variance=0.01, **common)
            model.fit(X, known)
            scores = model_scores(model.predict_new_outputs(X, latent_mean=S[new], latent_variance=0.1), truth)
        else:
            chosen = {"latent_dim": 3, "num_inducing": 100} if quick else sizes
            model = manygp.TLVMOGP(coordinate_system="sphere", **chosen, **common)
            model.fit(X, known, output_coordinates=S[old])
            scores = model_scores(model.predict_new_outputs(X, output_coordinates=S[new]), truth)
            scores |= {"latent_dim": model.model_.latents.dim, "num_inducing": len(model.model_.gp.Z)}
            scores["known_mse"] = round(model.evaluate(X, known)["mse"], 5)
        result[method] = scores | {"seconds": round(time.perf_counter() - started, 1)}
    return result


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=("cells", "region", "few"), default=["cells", "region"])
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--months", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latent-dim", type=int)
    parser.add_argument("--num-inducing", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--quick", action="store_true", help="a twelfth of the cells, small models, a few epochs")
    arguments = parser.parse_args()
    names = ("latent_dim", "num_inducing", "epochs")
    settings = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    result = {
        case: run(case, arguments.method, arguments.months, arguments.seed, arguments.quick, settings)
        for case in arguments.case
    }
    print(json.dumps({"benchmark": "new_outputs", "months": arguments.months, "seed": arguments.seed} | result))


if __name__ == "__main__":
    main()
