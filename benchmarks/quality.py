"""Test error on real data, beside the published values and the plain rival, a masked low-rank factorisation.

`python -m benchmarks.quality [--case eeg-sizes ...] [--seeds 3]` prints one JSON line, and each case as it is done to
stderr. The data come from the folder that MANYGP_DATA names, see `manygp data list`. A case is a data set with
settings: "sizes" takes the published sizes and is otherwise automatic, "auto" leaves everything to the defaults,
"paper" follows the published procedure. Training time is held against the steps that the published procedure takes,
each as long as a step of GPyTorch in the same run.
"""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import torch

import manygp
from benchmarks.step import gpytorch_step, interleaved
from manygp.data import Scaling
from manygp.data.factorisation import factorise
from manygp.paper import find_dataset, settings_for
from manygp.paper.problem import Problem, values_of
from manygp.paper.published import EEG, ERA5_BLOCK, ERA5_RANDOM, SARCOS

# Published scores, and the number of steps behind them: 1,000 epochs.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "eeg": (EEG["tlvmogp"], 2_000),
    "era5-random": (ERA5_RANDOM["tlvmogp"], 27_000),
    "era5-block": (ERA5_BLOCK["tlvmogp"], 27_000),
    "sarcos": (SARCOS["tlvmogp"], 192_000),
    "sarcos-clean": ({}, 174_000),
}
CASES = [f"{name}-{kind}" for kind in ("auto", "sizes", "paper") for name in PUBLISHED]


def settings_of(case: str) -> tuple[str, dict[str, Any]]:
    """Data set and settings of a case."""
    name, kind = case.rsplit("-", 1)
    if kind == "auto":
        return name, {}
    return name, settings_for(name, "tlvmogp", "fast" if kind == "sizes" else "paper")


def run(case: str, seeds: int) -> dict[str, Any]:
    """Fit a case with several seeds; mean and standard deviation of its test scores."""
    name, settings = settings_of(case)
    scores, seconds = [], []
    for seed in range(seeds):
        problem = find_dataset(name).load(seed)
        started = time.perf_counter()
        model = manygp.TLVMOGP(random_state=seed, progress=False, **settings)
        model.fit(problem.train.X, values_of(problem.train))
        seconds.append(time.perf_counter() - started)
        scores.append(model.evaluate(problem.test.X, values_of(problem.test)))
    published, steps = PUBLISHED[name]
    step = interleaved({"gpytorch": gpytorch_step(2_700, 200, 4, torch.float64, "gaussian")}, 20)["gpytorch"]
    return {
        "mean": {key: round(float(np.mean([s[key] for s in scores])), 5) for key in scores[0]},
        "sd": {key: round(float(np.std([s[key] for s in scores])), 5) for key in ("mse", "nll")},
        "published": published,
        "factorisation_mse": factorisation_error(problem),
        "seconds": round(float(np.mean(seconds)), 1),
        "share_of_published_steps": round(float(np.mean(seconds)) / (1e-3 * step * steps), 4),
        "sizes": model._sizes(),
        "epochs": len(model.history_),
    }


def factorisation_error(problem: Problem, ranks: tuple[int, ...] = (2, 3, 6, 8, 12, 16)) -> float:
    """Test error of the factorisation of the best rank, chosen by that very error."""
    scaling = Scaling.fit(problem.train, outputs="global")
    ranks = tuple(rank for rank in ranks if rank < problem.train.num_outputs)
    errors = [factorise(problem.train, scaling, rank).mean_squared_error(problem.test, scaling) for rank in ranks]
    return round(min(errors), 5)


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES[:10])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed of eeg-auto")
    arguments = parser.parse_args()
    results, seeds = {}, 1 if arguments.quick else arguments.seeds
    for case in ["eeg-auto"] if arguments.quick else arguments.case:
        results[case] = run(case, seeds)
        print(json.dumps({case: results[case]}), file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "quality", "seeds": seeds} | results))


if __name__ == "__main__":
    main()
