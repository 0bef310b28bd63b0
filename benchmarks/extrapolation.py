"""What is said beyond the data: a season ahead, a tenth of the range ahead, and far away.

`python -m benchmarks.extrapolation [--case NAME ...] [--set num_neighbors=0 ...]` prints each case as it is done to
stderr and one JSON line at the end. Generated tables are observed over a range and continued beyond it; `ersstv5` is a
region of a sea surface temperature file (`--data` names its folder, or MANYGP_DATA), 72 months and the year after
them, with and without coordinates of its cells. For each horizon: root mean squared error in units of each output's
spread, the share of means inside the range of the data, the median of standard deviations in spreads, the largest of
them, and the share of cells inside 90% intervals. Far away, means should lie within the data, standard deviations
between one and two spreads, and intervals should hold 85 to 99%.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from manygp.cli.settings import parse_settings
from manygp.estimators import ESTIMATORS

_RANGE, _STEPS, _FAR = 10.0, 100, 3.0
# Of the range: how far a season, and the second horizon, reach beyond it.
_HORIZONS = {"season": (0.0, 0.05), "tenth": (0.05, 0.1), "far": (2.0, 3.0)}
_YEARS = 6


def _continued(function: Callable[[np.ndarray, np.random.Generator], np.ndarray], noise: float, gaps: float) -> Any:
    """A table of a function over a range with noise and gaps, and what follows it."""

    def make(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
        x = np.arange(0.0, (1.0 + _FAR) * _RANGE, _RANGE / _STEPS)
        F = function(x, rng)
        Y = F + noise * rng.standard_normal(F.shape)
        seen = x < _RANGE
        ahead = {
            name: (x[at, None], Y[at])
            for name, (near, far) in _HORIZONS.items()
            if (at := (x >= _RANGE * (1.0 + near)) & (x < _RANGE * (1.0 + far))).any()
        }
        return x[seen, None], np.where(rng.random(Y[seen].shape) < gaps, np.nan, Y[seen]), ahead

    return make


def _draws(count: int, lengthscale: float) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    """Draws of a GP, by random features."""

    def draw(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        frequency, phase = rng.standard_normal(300) / lengthscale, rng.uniform(0.0, 2.0 * np.pi, 300)
        return np.cos(x[:, None] * frequency + phase) @ rng.standard_normal((300, count)) * np.sqrt(2.0 / 300)

    return draw


def _mixed(p: int, rank: int, lengthscale: float, shared: float) -> Any:
    """Mixtures of a few functions beside one that all outputs share."""

    def function(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        F = _draws(rank + 1, lengthscale)(x, rng)
        return shared * F[:, -1:] + F[:, :-1] @ rng.standard_normal((rank, p)) / np.sqrt(rank)

    return function


def _seasons(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Yearly waves of each output's own size and phase, and slow functions beside them."""
    p, year = 40, _RANGE / 6
    wave = np.cos(2.0 * np.pi * x[:, None] / year + 0.3 * rng.standard_normal(p)) * rng.uniform(0.5, 2.0, p)
    return 15.0 + 3.0 * rng.standard_normal(p) + wave + 0.3 * _mixed(p, 2, 2.0, 0.5)(x, rng)


CASES: dict[str, Any] = {
    "mixed": _continued(_mixed(20, 3, 1.0, 0.0), 0.1, 0.2),
    "alike": _continued(_mixed(20, 2, 1.0, 2.0), 0.05, 0.2),
    "clean": _continued(_mixed(12, 2, 1.5, 0.5), 0.01, 0.2),
    "few outputs": _continued(_mixed(3, 2, 1.0, 1.0), 0.2, 0.1),
    "own functions": _continued(_draws(8, 1.0), 0.1, 0.2),
    "seasons": _continued(_seasons, 0.2, 0.1),
}


def run(case: str, settings: dict[str, Any], model: str, seed: int, data: Path | None) -> dict[str, Any]:
    """Scores of a model at every horizon of a case."""
    given: dict[str, Any] = {}
    if case.startswith("ersstv5"):
        assert data is not None
        X, Y, ahead, places = _sea(data)
        if case.endswith("places"):
            given = {"output_coordinates": places}
    else:
        X, Y, ahead = CASES[case](np.random.default_rng(seed))
    started = time.perf_counter()
    fitted = ESTIMATORS[model](**{"random_state": seed, "progress": False} | settings).fit(X, Y, **given)
    seconds = time.perf_counter() - started
    low, high, spread = np.nanmin(Y, 0), np.nanmax(Y, 0), np.nanstd(Y, 0)
    scores = {name: _score(fitted, *held_out, low, high, spread) for name, held_out in ahead.items()}
    away = X.max(0, keepdims=True) + 1e3 * np.ptp(X, axis=0)
    ratio = fitted.predict_dist(away).std[0] / spread
    prior = {"prior_least": round(float(ratio.min()), 3), "prior_most": round(float(ratio.max()), 3)}
    return scores | prior | {"seconds": round(seconds, 1)}


def _score(model: Any, X: np.ndarray, Y: np.ndarray, low: np.ndarray, high: np.ndarray, spread: np.ndarray) -> Any:
    dist = model.predict_dist(X)
    mean, std = dist.mean, dist.std / spread
    return {
        "rmse": round(float(np.sqrt(np.nanmean(((mean - Y) / spread) ** 2))), 3),
        "inside": round(float(np.mean((mean >= low) & (mean <= high))), 3),
        "std": round(float(np.median(std)), 3),
        "largest_std": round(float(std.max()), 3),
        "coverage90": round(float(model.evaluate(X, Y)["coverage90"]), 3),
    }


def _sea(data: Path) -> tuple[np.ndarray, np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Six years of sea surface temperature in a region, and the year after; months are counted from the first."""
    import xarray

    with xarray.open_dataset(data / "ersstv5_2010_2020.nc") as file:
        field = file["sst"].squeeze(drop=True).sel(lat=slice(50.0, 20.0), lon=slice(150.0, 180.0))
        stacked = field.transpose("time", "lat", "lon").stack(cell=("lat", "lon")).dropna("cell", how="any")
        values = np.asarray(stacked.values, dtype=float)
        places = np.column_stack([stacked["lat"].values, stacked["lon"].values]).astype(float)
    months, n = np.arange(len(values), dtype=float)[:, None], 12 * _YEARS
    return months[:n], values[:n], {"year": (months[n : n + 12], values[n : n + 12])}, places


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = [*CASES, "ersstv5", "ersstv5 with places"]
    parser.add_argument("--case", nargs="+", choices=known, default=list(CASES))
    parser.add_argument("--model", choices=list(ESTIMATORS), default="tlvmogp")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=os.environ.get("MANYGP_DATA"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    settings = parse_settings(ESTIMATORS[arguments.model], arguments.set)
    results = {}
    for case in arguments.case:
        results[case] = run(case, settings, arguments.model, arguments.seed, arguments.data and Path(arguments.data))
        print(json.dumps({case: results[case]}), file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "extrapolation", "model": arguments.model, "cases": results}))


if __name__ == "__main__":
    main()
