"""Twenty generated tables of different kinds, each fitted with defaults and beside independent GPs.

`python -m benchmarks.kinds [--quick] [--case NAME ...]` prints one JSON line, and each case as it is done to stderr. A
table has some inputs, outputs and input dimensions, noise relative to the signal, cells missing at random; outputs are
mixtures of a few shared functions or have functions of their own; functions are smooth, or white along the inputs.
Scores are over missing cells, from several draws where there are few. The margin is the NLL of independent GPs less
that of T-LVMOGP, in nats a cell: it should be positive where outputs are correlated, and not below -0.05 elsewhere.
"""

import argparse
import json
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

import manygp

_TEST_CELLS, _MOST_DRAWS, _MOST_TEST_CELLS = 300, 20, 20_000


@dataclass(frozen=True)
class Kind:
    """What a table is like; `noise` and `missing` are relative to the signal and to all cells."""

    n: int
    p: int
    d: int
    noise: float
    missing: float
    rough: bool = False
    correlated: bool = True
    units: bool = False
    extra: str = ""


KINDS = {
    "tiny": Kind(20, 5, 1, 0.1, 0.2),
    "single output": Kind(60, 1, 1, 0.3, 0.3, correlated=False),
    "two outputs": Kind(100, 2, 1, 0.2, 0.4),
    "clean": Kind(50, 50, 1, 0.01, 0.3),
    "very noisy": Kind(100, 60, 1, 2.0, 0.2),
    "nearly empty": Kind(60, 300, 1, 0.2, 0.95),
    "nearly full": Kind(80, 100, 2, 0.2, 0.05),
    "rough": Kind(200, 40, 1, 0.2, 0.3, rough=True),
    "rough with many outputs": Kind(36, 1500, 1, 0.3, 0.4, rough=True),
    "own functions": Kind(80, 12, 1, 0.2, 0.3, correlated=False),
    "own functions of two inputs": Kind(200, 8, 2, 0.3, 0.5, correlated=False),
    "own noise": Kind(100, 10, 1, 2.0, 0.3, correlated=False),
    "other units": Kind(60, 30, 2, 0.1, 0.3, units=True),
    "constant output": Kind(50, 20, 1, 0.1, 0.3, extra="constant"),
    "duplicated output": Kind(50, 20, 1, 0.3, 0.3, extra="output"),
    "duplicated inputs": Kind(60, 20, 1, 0.3, 0.3, extra="input"),
    "five inputs": Kind(800, 20, 5, 0.1, 0.5),
    "twenty inputs": Kind(1500, 6, 20, 0.2, 0.3),
    "many inputs": Kind(5000, 4, 3, 0.3, 0.5),
    "many outputs": Kind(24, 5000, 1, 0.2, 0.5),
}
QUICK = ("tiny", "own functions", "constant output")


def make_table(kind: Kind, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, observations with gaps, and values for the gaps (NaN elsewhere)."""
    X = rng.uniform(0.0, 10.0, (kind.n, kind.d))
    if kind.extra == "input":
        X[kind.n // 2 :] = X[: kind.n - kind.n // 2]
    if kind.correlated:
        rank = min(3, kind.p)
        F = _functions(X, rank, kind.rough, rng) @ rng.standard_normal((rank, kind.p)) / np.sqrt(rank)
    else:
        F = _functions(X, kind.p, kind.rough, rng)
    if kind.extra == "output":
        F[:, -1] = F[:, 0]
    Y = F + kind.noise * rng.standard_normal(F.shape)
    if kind.extra == "constant":
        Y[:, -1] = 3.0
    if kind.units:
        Y = 1e4 + Y * 10.0 ** rng.uniform(-3.0, 3.0, kind.p)
        X = 1e3 + X * 10.0 ** rng.uniform(-2.0, 4.0, kind.d)
    gaps = rng.random(Y.shape) < kind.missing
    held_out = np.where(gaps & (rng.random(Y.shape) < _MOST_TEST_CELLS / max(gaps.sum(), 1)), Y, np.nan)
    if kind.extra == "constant":
        # Any method gets it right, and its density is a matter of the smallest noise.
        held_out[:, -1] = np.nan
    return X, np.where(gaps, np.nan, Y), held_out


def _functions(X: np.ndarray, count: int, rough: bool, rng: np.random.Generator) -> np.ndarray:
    """Draws of a GP with a lengthscale of a quarter of the range (by random features), or of white noise."""
    if rough:
        _, row = np.unique(X, axis=0, return_inverse=True)
        return rng.standard_normal((len(X), count))[row.reshape(-1)]
    features = 500
    frequency = rng.standard_normal((X.shape[1], features)) / (2.5 * np.sqrt(X.shape[1]))
    waves = np.cos(X @ frequency + rng.uniform(0.0, 2.0 * np.pi, features))
    return waves @ rng.standard_normal((features, count)) * np.sqrt(2.0 / features)


def run(kind: Kind, seed: int = 0) -> dict[str, Any]:
    """Scores of T-LVMOGP and of independent GPs on draws of a kind."""
    rng, cells = np.random.default_rng(seed), 0
    scores: dict[str, list[dict[str, float]]] = {"tlvmogp": [], "indgp": []}
    seconds = dict.fromkeys(scores, 0.0)
    while cells < _TEST_CELLS and len(scores["indgp"]) < _MOST_DRAWS:
        X, Y, held_out = make_table(kind, rng)
        for name, model in (("tlvmogp", manygp.TLVMOGP(progress=False)), ("indgp", manygp.IndGP(progress=False))):
            started = time.perf_counter()
            scores[name].append(model.fit(X, Y).evaluate(X, held_out))
            seconds[name] += time.perf_counter() - started
        cells += int(scores["indgp"][-1]["num_cells"])

    def mean(name: str, key: str) -> float:
        return float(np.average([s[key] for s in scores[name]], weights=[s["num_cells"] for s in scores[name]]))

    return {
        "nll": round(mean("tlvmogp", "nll"), 4),
        "indgp_nll": round(mean("indgp", "nll"), 4),
        "margin": round(mean("indgp", "nll") - mean("tlvmogp", "nll"), 4),
        "coverage90": round(mean("tlvmogp", "coverage90"), 4),
        "cells": cells,
        "draws": len(scores["indgp"]),
        **{f"{name}_seconds": round(value, 1) for name, value in seconds.items()},
    }


def verdict(kind: Kind, result: dict[str, Any]) -> bool:
    """Whether the margin is positive (or small, where there is nothing to gain) and the coverage within five points."""
    least = 0.0 if kind.correlated and kind.p > 1 else -0.05
    return bool(result["margin"] > least and 0.85 <= result["coverage90"] <= 0.95)


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="three small kinds")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    results = {}
    for name in QUICK if arguments.quick else arguments.case:
        result = run(KINDS[name], arguments.seed)
        results[name] = {"good": verdict(KINDS[name], result), **result}
        print(json.dumps({name: results[name]}), file=sys.stderr, flush=True)
    good = sum(result["good"] for result in results.values())
    print(json.dumps({"benchmark": "kinds", "good": good, "of": len(results), "kinds": results}))


if __name__ == "__main__":
    main()
