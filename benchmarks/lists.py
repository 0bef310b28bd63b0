"""Ten generated lists of cells, in which every output has inputs of its own, fitted with defaults.

`python -m benchmarks.lists [--quick] [--case NAME ...] [--model NAME ...]` prints one JSON line, and each case as it is
done to stderr: mean squared error, negative log density, coverage of 90% intervals and seconds of T-LVMOGP, independent
GPs and SV-LMC on cells that were held out. Outputs are mixtures of a few shared functions, or have functions of their
own. The margin is the NLL of the better rival less that of T-LVMOGP, in nats a cell, and should not be below -0.05.
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

_TEST_CELLS = 2_000


@dataclass(frozen=True)
class List:
    """What a list is like: cells, outputs, input dimensions, cycles of each shared function over the unit range.

    `noise` is relative to functions of amplitude 1; `move` moves inputs of a grid by so much instead of drawing them,
    `repeats` cells occur twice, and outputs with `own` functions share none.
    """

    cells: int
    outputs: int
    dims: int = 1
    cycles: tuple[float, ...] = (5.0, 3.0)
    noise: float = 0.1
    move: float = 0.0
    repeats: int = 0
    part: float = 1.0
    own: bool = False


LISTS = {
    "two signals": List(1_000, 30),
    "moved grid": List(1_000, 30, move=1e-4),
    "one repeated cell": List(1_000, 30, move=1e-12, repeats=1),
    "five outputs": List(500, 5),
    "few cells each": List(1_000, 200, cycles=(4.0, 3.0)),
    "four signals": List(2_000, 60, cycles=(6.0, 5.0, 4.0, 3.0)),
    "noisy": List(2_000, 40, noise=0.7),
    "two inputs": List(1_500, 30, 2, (3.0, 2.0, 2.0)),
    "stretches": List(1_500, 40, part=0.5),
    "own functions": List(800, 10, cycles=(4.0,), own=True),
}
MODELS = {"tlvmogp": manygp.TLVMOGP, "indgp": manygp.IndGP, "svlmc": manygp.SVLMC}
QUICK = ("two signals",)


def make_list(kind: List, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, outputs and values of cells, those held out last."""
    total = kind.cells + _TEST_CELLS
    output = rng.integers(kind.outputs, size=total)
    X = rng.uniform(0.0, 1.0, (total, kind.dims))
    if kind.part < 1.0:
        # An output is seen in a window of its own.
        X[: kind.cells] *= kind.part
        X[: kind.cells] += (rng.uniform(0.0, 1.0 - kind.part, kind.outputs)[output[: kind.cells]])[:, None]
    if kind.move:
        rows, inputs = np.divmod(rng.choice(kind.outputs * 60, kind.cells, replace=False), 60)
        output[: kind.cells] = rows
        X[: kind.cells] = (inputs / 59.0 + kind.move * rng.standard_normal(kind.cells))[:, None]
    once = slice(kind.repeats, 2 * kind.repeats)
    X[: kind.repeats], output[: kind.repeats] = X[once], output[once]
    phase = rng.uniform(0.0, 2.0 * np.pi, (kind.outputs, len(kind.cycles)))[output if kind.own else output * 0]
    along = X[:, np.arange(len(kind.cycles)) % kind.dims]
    waves = np.sin(2.0 * np.pi * np.asarray(kind.cycles) * along + phase)
    weights = np.ones((kind.outputs, 1)) if kind.own else rng.standard_normal((kind.outputs, len(kind.cycles)))
    y = (waves * weights[output]).sum(1) + kind.noise * rng.standard_normal(total)
    return X, output, y


def run(kind: List, models: list[str], seed: int = 0) -> dict[str, Any]:
    """Scores of the models, and the margin of T-LVMOGP."""
    X, output, y = make_list(kind, np.random.default_rng(seed))
    train, test = slice(0, kind.cells), slice(kind.cells, None)
    result: dict[str, Any] = {}
    for name in models:
        model, started = MODELS[name](progress=False), time.perf_counter()
        model.fit_cells(X[train], output[train], y[train], output_names=range(kind.outputs))
        scores = model.predict_cells(X[test], output[test]).score(y[test])
        kept = {key: round(scores[key], 4) for key in ("mse", "nll", "coverage90")}
        result[name] = kept | {"seconds": round(time.perf_counter() - started, 1)}
    rivals = [result[name]["nll"] for name in models if name != "tlvmogp"]
    if rivals and "tlvmogp" in result:
        result["margin"] = round(min(rivals) - result["tlvmogp"]["nll"], 4)
    return result


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", choices=list(LISTS), default=list(LISTS))
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="the first kind only")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    results = {}
    for name in QUICK if arguments.quick else arguments.case:
        results[name] = run(LISTS[name], arguments.model, arguments.seed)
        print(json.dumps({name: results[name]}), file=sys.stderr, flush=True)
    good = sum(result.get("margin", 0.0) >= -0.05 for result in results.values())
    print(json.dumps({"benchmark": "lists", "good": good, "of": len(results), "lists": results}))


if __name__ == "__main__":
    main()
