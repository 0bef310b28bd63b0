"""Updates beside full fits: ERA5, of which some months are fitted and the others arrive one by one.

`python -m benchmarks.update` fits T-LVMOGP to the first 24 of 30 months of the monthly temperatures at 3,395 places (or
of every n-th place, `--every n`), lets the other six come one after another, and compares scores of the held-out cells
of all months so far, and seconds of processors, with a fit to all of them. Then a wrong month comes and is forgotten.
One JSON line for each.
"""

import argparse
import json
import time
from typing import Any

import numpy as np

import manygp
from manygp.paper.datasets import DATASETS


def load(every: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Months in order, observed values and held-out ones, NaN elsewhere."""
    problem = DATASETS["era5-random"].load(0)
    train, test = problem.train, problem.test
    order = np.argsort(train.X[:, 0])
    places = np.arange(0, train.num_outputs, every)
    return train.X[order], *(part.block(order, places) for part in (train, test))


def scores(model: Any, X: np.ndarray, Y: np.ndarray) -> dict[str, float]:
    """Scores that are compared."""
    found = model.evaluate(X, Y)
    return {name: round(found[name], 5) for name in ("mse", "nll")}


def main() -> None:
    """Run the benchmark and print its JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every n-th place")
    parser.add_argument("--first", type=int, default=24, help="months of the fit")
    parser.add_argument("--neighbors", default="auto", help="num_neighbors of the model")
    parser.add_argument("--epochs", default="auto")
    parser.add_argument("--refits", type=int, default=6, help="compare with a fit every so many months")
    arguments = parser.parse_args()
    X, Y, held = load(arguments.every)
    chosen: dict[str, Any] = {"num_neighbors": arguments.neighbors, "epochs": arguments.epochs}
    chosen = {key: int(value) if str(value).isdigit() else value for key, value in chosen.items()}

    def fit(last: int) -> tuple[Any, float]:
        began = time.process_time()
        return manygp.TLVMOGP(**chosen, progress=False).fit(X[:last], Y[:last]), time.process_time() - began

    def tell(**words: Any) -> None:
        print(json.dumps({"benchmark": "update", **words}), flush=True)

    first = arguments.first
    model, seconds = fit(first)
    tell(kind="fit", months=first, seconds=round(seconds, 1), **scores(model, X[:first], held[:first]))
    before = model
    for month in range(first, len(X)):
        row, began = slice(month, month + 1), time.process_time()
        model = model.update(X[row], Y[row])
        spent = time.process_time() - began
        told = scores(model, X[: month + 1], held[: month + 1])
        arrived = scores(model, X[first : month + 1], held[first : month + 1])
        tell(kind="update", months=month + 1, seconds=round(spent, 2), surprise=round(model.surprise_, 3), **told)
        tell(kind="update", of="months that came", months=month + 1, **arrived)
        if (month + 1 - first) % arguments.refits == 0:
            refit, seconds = fit(month + 1)
            told = scores(refit, X[: month + 1], held[: month + 1])
            arrived = scores(refit, X[first : month + 1], held[first : month + 1])
            tell(kind="refit", months=month + 1, seconds=round(seconds, 1), **told)
            tell(kind="refit", of="months that came", months=month + 1, **arrived)
    wrong = slice(first, first + 1)
    spoilt = before.update(X[wrong], -Y[wrong])
    forgot = spoilt.update(forget=(X[wrong], Y[wrong]))
    a, b = before.predict_dist(X), forgot.predict_dist(X)
    left = max(np.abs(a.mean - b.mean).max(), np.abs(a.std - b.std).max())
    tell(kind="forget", advised=spoilt.refit_advised_, left=float(left))


if __name__ == "__main__":
    main()
