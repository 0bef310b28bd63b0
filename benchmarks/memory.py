"""Peak memory of a fit to a large table, beside the size of the table itself.

`python -m benchmarks.memory` fits 10,000 inputs x 2,000 outputs, half of the cells missing, and prints one JSON line.
The limit is 2.5 times the size of Y in float64 plus 500 MB, for the whole process, interpreter and libraries included.
"""

import argparse
import json
import resource
import time

import numpy as np

import manygp


def make_table(num_inputs: int, num_outputs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A rank-3 table with noise and half of its cells missing, filled row by row so that Y is the only large array."""
    rng = np.random.default_rng(seed)
    X = np.linspace(0.0, 10.0, num_inputs)[:, None]
    curves = np.stack([np.sin(X[:, 0]), np.cos(2.0 * X[:, 0]), np.sin(0.5 * X[:, 0])], axis=1)
    loadings = rng.standard_normal((num_outputs, 3))
    Y = np.empty((num_inputs, num_outputs))
    for n in range(num_inputs):
        Y[n] = loadings @ curves[n] + 0.1 * rng.standard_normal(num_outputs)
        Y[n, rng.random(num_outputs) < 0.5] = np.nan
    return X, Y


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the inputs")
    arguments = parser.parse_args()
    X, Y = make_table(1_000 if arguments.quick else 10_000, 2_000)
    before, started = peak_mb(), time.perf_counter()
    model = manygp.TLVMOGP(epochs=1, progress=False).fit(X, Y)
    limit = 2.5 * Y.nbytes / 1e6 + 500.0
    print(
        json.dumps(
            {
                "benchmark": "memory",
                "table_mb": Y.nbytes / 1e6,
                "before_fit_mb": round(before, 1),
                "peak_mb": round(peak_mb(), 1),
                "limit_mb": limit,
                "within_limit": peak_mb() <= limit,
                "fit_seconds": round(time.perf_counter() - started, 1),
                "num_inducing": len(model.inducing_points_),
                "latent_dim": model.latent_mean_.shape[1],
            }
        )
    )


if __name__ == "__main__":
    main()
