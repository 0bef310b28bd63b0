"""SARCOS without copied rows beside what a roboticist has today: boosted trees, and a GP of one output with neighbours.

`python -m benchmarks.boosting [--method boosting gpboost tlvmogp ...] [--seeds 0 1 2] [--rows N] [--set KEY=VALUE ...]`
prints each result as it is done to stderr, and one JSON line. Half of the cells of 44,484 states of the arm are held
out. "boosting" is scikit-learn's histogram gradient boosting of every torque on the state and the other torques, 500
trees, gaps as they are. "gpboost" is GPBoost's Vecchia-inducing-points approximation of a GP over the state, torque by
torque, fitted to `--rows` of a torque's observed cells (extra `benchmarks`); with a lengthscale for every input,
`--covariance matern_ard`, a thousand rows take minutes of a core, with one for all of them seconds. The data come from
the folder that MANYGP_DATA names, see `manygp data list`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor

from manygp.cli.settings import parse_settings
from manygp.estimators import ESTIMATORS
from manygp.paper import find_dataset
from manygp.paper.problem import values_of

# Means and standard deviations (None if a method has none) for inputs where an output is to be predicted.
Predicted = tuple[np.ndarray, np.ndarray | None]
Method = Callable[[np.ndarray, np.ndarray, int, np.ndarray], Predicted]


def boosted(X: np.ndarray, Y: np.ndarray, output: int, at: np.ndarray, trees: int = 500) -> Predicted:
    """One output at some rows, by trees on inputs and all other outputs, NaN as they are."""
    design = np.hstack([X, np.delete(Y, output, 1)])
    known = ~np.isnan(Y[:, output])
    model = HistGradientBoostingRegressor(max_iter=trees, early_stopping=False, random_state=0)
    return model.fit(design[known], Y[known, output]).predict(design[at]), None


def vecchia_inducing(
    X: np.ndarray, Y: np.ndarray, output: int, at: np.ndarray, rows: int = 5_000, covariance: str = "matern"
) -> Predicted:
    """One output at some rows, by GPBoost's GP over the inputs with inducing points and neighbours."""
    import gpboost

    known = np.flatnonzero(~np.isnan(Y[:, output]))
    chosen = np.random.default_rng(0).choice(known, min(rows, len(known)), replace=False)
    model = gpboost.GPModel(
        gp_coords=X[chosen], cov_function=covariance, cov_fct_shape=1.5, gp_approx="full_scale_vecchia", seed=0
    )
    model.fit(y=Y[chosen, output], params={"trace": False})
    dist = model.predict(gp_coords_pred=X[at], predict_var=True, predict_response=True)
    return dist["mu"], np.sqrt(dist["var"])


def by_output(method: Method, X: np.ndarray, Y: np.ndarray, held_out: np.ndarray) -> dict[str, Any]:
    """Scores of a method that predicts outputs one by one."""
    squares, densities, inside = [], [], []
    started, cpu = time.perf_counter(), time.process_time()
    for output in range(Y.shape[1]):
        at = np.flatnonzero(~np.isnan(held_out[:, output]))
        mean, std = method(X, Y, output, at)
        error = held_out[at, output] - mean
        squares.append(error**2)
        if std is not None:
            densities.append(norm.logpdf(error, scale=std))
            inside.append(np.abs(error) < norm.ppf(0.95) * std)
        print(f"  torque {output + 1}: mse {np.mean(error**2):.5f}", file=sys.stderr, flush=True)
    scores: dict[str, Any] = {"mse": _mean(squares)}
    if densities:
        scores |= {"nll": -_mean(densities), "coverage90": _mean(inside)}
    took = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
    return scores | {name: round(value, 1) for name, value in took.items()}


def _mean(parts: Iterable[np.ndarray]) -> float:
    return round(float(np.concatenate(list(parts)).mean()), 5)


def by_estimator(name: str, settings: list[str], seed: int, X: np.ndarray, Y: np.ndarray, held_out: np.ndarray) -> dict:
    """Scores of an estimator of all outputs at once."""
    chosen = parse_settings(ESTIMATORS[name], settings)
    started = time.perf_counter()
    model = ESTIMATORS[name](random_state=seed, progress=False, **chosen).fit(X, Y)
    seconds = time.perf_counter() - started
    scores = model.evaluate(X, held_out)
    return {key: round(scores[key], 5) for key in ("mse", "nll", "coverage90")} | {"seconds": round(seconds, 1)}


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--method", nargs="+", choices=["boosting", "gpboost", *ESTIMATORS], default=["boosting", "gpboost", "tlvmogp"]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, default=5_000, help="cells of a torque that GPBoost is fitted to")
    parser.add_argument("--covariance", default="matern", choices=["matern", "matern_ard"], help="that of GPBoost")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the estimators")
    parser.add_argument("--dataset", default="sarcos-clean", choices=["sarcos-clean", "sarcos"])
    arguments = parser.parse_args()
    results = []
    for seed in arguments.seeds:
        problem = find_dataset(arguments.dataset).load(seed)
        X, Y, held_out = problem.train.X, values_of(problem.train), values_of(problem.test)
        for name in arguments.method:
            if name == "boosting":
                scores = by_output(boosted, X, Y, held_out)
            elif name == "gpboost":
                try:
                    method = partial(vecchia_inducing, rows=arguments.rows, covariance=arguments.covariance)
                    scores = by_output(method, X, Y, held_out)
                except ModuleNotFoundError:
                    print("gpboost is left out: it is not installed; pip install gpboost.", file=sys.stderr)
                    continue
            else:
                scores = by_estimator(name, arguments.set, seed, X, Y, held_out)
            results.append({"method": name, "seed": seed, **scores})
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "boosting", "dataset": arguments.dataset, "results": results}))


if __name__ == "__main__":
    main()
