"""Time before the first training step of T-LVMOGP, on generated tables of four shapes.

`python -m benchmarks.start [--quick] [--repeats N]` prints one JSON line: for each table, seconds and seconds of CPU
from `fit` to the first step (the least of some repeats), and how many low-rank factorisations were fitted on the way.
Run it with `PYTHONPATH` at another checkout's `src` to compare.
"""

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np

import manygp
from benchmarks.kinds import Kind, make_table
from manygp.data import factorisation
from manygp.estimators import trained

TABLES = {
    "60 x 120": Kind(60, 120, 1, 0.2, 0.3),
    "250 x 13": Kind(250, 13, 1, 0.2, 0.3),
    "1,000 x 50": Kind(1_000, 50, 1, 0.2, 0.3),
    "30 x 3,395": Kind(30, 3_395, 1, 0.2, 0.3),
}
QUICK = ("60 x 120",)


class _FirstStep(Exception):
    """Training would begin now."""


def _stop(*_: Any, **__: Any) -> None:
    raise _FirstStep


def run(kind: Kind, repeats: int, seed: int = 0) -> dict[str, float]:
    """Seconds to the first step, and factorisations before it."""
    X, Y, _ = make_table(kind, np.random.default_rng(seed))
    seconds, work, count, converge = list[float](), list[float](), 0, factorisation.converge

    def counted(*arguments: Any, **keywords: Any) -> None:
        nonlocal count
        count += 1
        converge(*arguments, **keywords)

    factorisation.converge, trained.train = counted, _stop  # type: ignore[assignment]
    for _ in range(repeats):
        count, started, cpu = 0, time.perf_counter(), time.process_time()
        try:
            manygp.TLVMOGP(progress=False).fit(X, Y)
        except _FirstStep:
            seconds.append(time.perf_counter() - started)
            work.append(time.process_time() - cpu)
    factorisation.converge = converge
    return {"seconds": round(min(seconds), 3), "cpu_seconds": round(min(work), 3), "factorisations": count}


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the smallest table, once")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    names = QUICK if arguments.quick else tuple(TABLES)
    results = {name: run(TABLES[name], 1 if arguments.quick else arguments.repeats) for name in names}
    print(json.dumps({"benchmark": "start", "tables": results}))


if __name__ == "__main__":
    main()
