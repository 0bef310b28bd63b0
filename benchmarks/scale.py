"""Time of a training step and peak memory as the number of outputs grows.

`python -m benchmarks.scale [--quick]` fits tables of 24 inputs and 10⁴, 10⁵ and 10⁶ outputs for one epoch, each in a
process of its own so that peaks do not add up, and prints one JSON line. A step's time should depend on its batch
alone, so the last should take about as long as the first, and an epoch's time should be proportional to the number of
cells. The smallest table is fitted before and after the others, because the machine may have grown slower meanwhile.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

import manygp
from manygp.data import as_table

NUM_INPUTS = 24
SETTINGS = {"latent_dim": 3, "num_inducing": 200, "standardize": "global", "progress": False}


def make_table(num_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Seasons of different strength and delay with noise, a third of the cells missing, filled row by row."""
    rng = np.random.default_rng(0)
    X = np.arange(NUM_INPUTS, dtype=np.float64)[:, None]
    strength, delay = rng.lognormal(0.0, 0.3, num_outputs), rng.normal(0.0, 0.5, num_outputs)
    Y = np.empty((NUM_INPUTS, num_outputs))
    for n in range(NUM_INPUTS):
        Y[n] = strength * np.cos(0.5 * n - delay) + 0.1 * rng.standard_normal(num_outputs)
        Y[n, rng.random(num_outputs) < 1.0 / 3.0] = np.nan
    return X, Y


def fit(num_outputs: int, min_steps: int = 120) -> dict[str, Any]:
    """Fit one table and tell what it took; small tables are passed over several times for a steady figure."""
    X, Y = make_table(num_outputs)
    cells = int((~np.isnan(Y)).sum())
    epochs = max(1, round(min_steps * 4096 / cells))
    started = time.perf_counter()
    model = manygp.TLVMOGP(epochs=epochs, **SETTINGS).fit(X, Y)
    steps = epochs * len(model._plan(as_table(X, Y), model.scaling_))
    return {
        "num_outputs": num_outputs,
        "cells": cells,
        "ms_per_step": round(1e3 * model.history_.seconds / steps, 2),
        "seconds_per_epoch": round(model.history_.seconds / epochs, 2),
        "microseconds_per_cell": round(1e6 * model.history_.seconds / epochs / cells, 2),
        "start_seconds": round(time.perf_counter() - started - model.history_.seconds, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def fit_apart(num_outputs: int) -> dict[str, Any]:
    """`fit` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--fit", str(num_outputs)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10³ and 10⁴ outputs")
    parser.add_argument("--fit", type=int, help="fit one table with so many outputs in this process")
    arguments = parser.parse_args()
    if arguments.fit:
        print(json.dumps(fit(arguments.fit)))
        return
    sizes = [1_000, 10_000, 1_000] if arguments.quick else [10_000, 100_000, 1_000_000, 10_000]
    results = [fit_apart(size) for size in sizes]
    smallest = np.mean([results[0]["ms_per_step"], results[-1]["ms_per_step"]])
    largest = results[-2]
    print(
        json.dumps(
            {
                "benchmark": "scale",
                "step_ratio_largest_to_smallest": round(largest["ms_per_step"] / smallest, 2),
                "peak_gb_largest": largest["peak_gb"],
                "fits": results,
            }
        )
    )


if __name__ == "__main__":
    main()
