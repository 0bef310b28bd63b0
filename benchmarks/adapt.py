"""New outputs from a few observations: how well and how fast a trained model takes them in.

`python -m benchmarks.adapt` leaves 500 of the 3,395 cells of era5_random.h5 (in the folder that MANYGP_DATA names) out
of training and adapts the model to 3, 6 and 12 of their months, which takes the CPU seconds told. Scores are over all
their other months, and stand beside those of the same outputs predicted from the prior and of a model that was trained
with the 12 months too. Prints one JSON line; `--quick` takes fewer outputs and epochs.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import manygp
from manygp.data import read_table
from manygp.data.table import FloatArray

MONTHS = (3, 6, 12)


def read_values() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Months, all values, and the values of the training part with NaN elsewhere."""
    path = Path(os.environ["MANYGP_DATA"]) / "era5_random.h5"
    train, test = read_table(path, part="train"), read_table(path, part="test")
    known = np.where(train.mask, train.Y, np.nan)
    return train.X, np.where(test.mask, test.Y, known), known


def thinned(Y: FloatArray, months: int, rng: np.random.Generator) -> FloatArray:
    """Y with only so many observed months of every output."""
    order = np.argsort(np.where(np.isnan(Y), np.inf, rng.random(Y.shape)), axis=0)
    kept = np.full_like(Y, np.nan)
    np.put_along_axis(kept, order[:months], np.take_along_axis(Y, order[:months], 0), 0)
    return kept


def run(num_new: int, seed: int, **settings: Any) -> dict[str, Any]:
    """Train without some outputs, adapt to them, and train with them."""
    rng = np.random.default_rng(seed)
    X, everything, known = read_values()
    order = rng.permutation(known.shape[1])
    new, old = order[:num_new], order[num_new:]
    if settings.get("epochs"):
        old = old[: 3 * num_new]
    started = time.perf_counter()
    model = manygp.TLVMOGP(random_state=seed, progress=False, **settings).fit(X, known[:, old])
    result: dict[str, Any] = {"fit_seconds": round(time.perf_counter() - started, 1), "sizes": model._sizes()}
    given = {months: thinned(known[:, new], months, rng) for months in MONTHS}
    positions = list(range(len(old), len(old) + num_new))
    # All months that no adaptation sees are the common test.
    held_out = np.where(np.isnan(given[max(MONTHS)]), everything[:, new], np.nan)
    usual = np.repeat(model.latent_mean_.mean(0, keepdims=True), num_new, 0)
    spread = model.latent_mean_.var(0) * np.ones((num_new, 1))
    prior = model.predict_new_outputs(X, latent_mean=usual, latent_variance=spread)
    result["prior"] = rounded(prior.score(held_out))
    for months, Y in given.items():
        started = time.process_time()
        adapted = model.adapt(X, Y)
        seconds = time.process_time() - started
        others = np.where(np.isnan(Y), everything[:, new], np.nan)
        scores = rounded(adapted.evaluate(X, held_out, outputs=positions))
        scores["nll_of_all_others"] = round(adapted.evaluate(X, others, outputs=positions)["nll"], 4)
        result[f"adapted_{months}"] = scores | {"seconds": round(seconds, 2)}
    together = np.hstack([known[:, old], given[max(MONTHS)]])
    trained = manygp.TLVMOGP(random_state=seed, progress=False, **settings).fit(X, together)
    result["trained_12"] = rounded(trained.evaluate(X, held_out, outputs=positions))
    return result


def rounded(scores: dict[str, float]) -> dict[str, float]:
    """The scores worth telling."""
    return {key: round(scores[key], 4) for key in ("mse", "nll", "coverage90")}


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="100 outputs, a small model, a few epochs")
    arguments = parser.parse_args()
    settings = {"epochs": 10, "latent_dim": 3, "num_inducing": 100} if arguments.quick else {}
    num_new = 100 if arguments.quick else arguments.outputs
    result = run(num_new, arguments.seed, **settings)
    print(json.dumps({"benchmark": "adapt", "outputs": num_new, "seed": arguments.seed} | result))


if __name__ == "__main__":
    main()
