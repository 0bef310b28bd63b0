"""Test error on real data, beside the published values and the plain rival, a masked low-rank factorisation.

`python -m benchmarks.quality [--case eeg-paper ...] [--seeds 3]` reads eeg.h5, era5_random.h5 and era5_block.h5 from
the folder that the environment variable MANYGP_DATA names and prints one JSON line. A case is a data set with settings:
"paper" follows the published procedure, "sizes" takes the published sizes and is otherwise automatic, "auto" leaves
everything to the defaults.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import manygp
from manygp.data import Scaling
from manygp.data.factorisation import factorise
from manygp.data.files import read_table

SIZES: dict[str, dict[str, Any]] = {
    "eeg": {"latent_dim": 3, "num_inducing": 200, "spectral_bound": 0.005, "batch_inputs": 128, "batch_outputs": 7},
    "era5_random": {"latent_dim": 3, "num_inducing": 200, "batch_inputs": 30, "batch_outputs": 128},
    "era5_block": {"latent_dim": 3, "num_inducing": 200, "batch_inputs": 30, "batch_outputs": 128},
}
PAPER: dict[str, dict[str, Any]] = {
    # The noise of the EEG is held at a standard deviation of 0.01; the data come standardised.
    "eeg": {"freeze_likelihood": math.inf, "standardize": False},
    "era5_random": {"freeze_likelihood": 0, "standardize": False},
    "era5_block": {"freeze_likelihood": 0, "standardize": False},
}
PUBLISHED = {
    "eeg": {"mse": [0.115, 0.025], "nll": [0.814, 0.310]},
    "era5_random": {"mse": [0.0022, 0.0001], "nll": [-1.564, 0.024]},
    "era5_block": {"mse": [0.0027, 0.0002], "nll": [-1.503, 0.026]},
}
CASES = [f"{name}-{kind}" for kind in ("auto", "sizes", "paper") for name in SIZES]


def settings_of(case: str) -> tuple[str, dict[str, Any]]:
    """Data set and settings of a case."""
    name, kind = case.rsplit("-", 1)
    if kind == "auto":
        return name, {}
    if kind == "sizes":
        return name, SIZES[name]
    return name, {"preset": "paper"} | SIZES[name] | PAPER[name]


def run(case: str, seeds: int, ranks: tuple[int, ...] = (2, 3, 6, 8, 12, 16)) -> dict[str, Any]:
    """Fit a case with several seeds; mean and standard deviation of its test scores."""
    name, settings = settings_of(case)
    path = Path(os.environ["MANYGP_DATA"]) / f"{name}.h5"
    train, test = read_table(path, part="train"), read_table(path, part="test")
    scores, seconds = [], []
    for seed in range(seeds):
        started = time.perf_counter()
        model = manygp.TLVMOGP(random_state=seed, progress=False, **settings)
        model.fit(train.X, train.Y, mask=train.mask)
        seconds.append(time.perf_counter() - started)
        held_out = np.where(test.mask, test.Y, np.nan) if test.mask is not None else test.Y
        scores.append(model.evaluate(test.X, held_out))
    scaling = Scaling.fit(train, outputs="global")
    rival = {rank: factorise(train, scaling, rank).mean_squared_error(test, scaling) for rank in ranks}
    means = {key: round(float(np.mean([s[key] for s in scores])), 5) for key in scores[0]}
    spread = {key: round(float(np.std([s[key] for s in scores])), 5) for key in ("mse", "nll")}
    return {
        "mean": means,
        "sd": spread,
        "published": PUBLISHED[name],
        "factorisation_mse": round(min(rival.values()), 5),
        "seconds": round(float(np.mean(seconds)), 1),
        "sizes": model._sizes(),
        "epochs": len(model.history_),
    }


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES[:6])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed of eeg-auto")
    arguments = parser.parse_args()
    cases, seeds = (["eeg-auto"], 1) if arguments.quick else (arguments.case, arguments.seeds)
    print(json.dumps({"benchmark": "quality", "seeds": seeds} | {case: run(case, seeds) for case in cases}))


if __name__ == "__main__":
    main()
