"""Predictions of a run saved for figures: plain arrays in one file."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manygp.paper.problem import Problem

# Tables beyond this size save every so manieth output and those to show, so that a file stays small.
_MAX_CELLS = 400_000
# Intervals of a mixture are found by bisection; beyond this many cells standard deviations must do.
_MAX_INTERVALS = 20_000
_LEVEL = 0.95
_MAX_EMBEDDED = 20_000


def save_predictions(path: Path, model: Any, problem: Problem, new: Any = None) -> None:
    """Write what a model predicts for the grid it was fitted to, and its latent vectors if it has some.

    Arrays: `outputs` (k,) positions of the outputs, `mean`, and if the model knows them `std`, `lower` and `upper`
    (95% intervals), each (n, k); `new_mean` and `new_std` (n, p*) of the prediction `new` of outputs that were not
    observed; `latent_mean` (p, h); `embedding` (cells, e) of a sample of cells with their
    `embedded_inputs` and `embedded_outputs`.
    """
    X, p = problem.train.X, problem.train.num_outputs
    stride = max(1, -(-len(X) * p // _MAX_CELLS))
    names = list(problem.train.output_names)
    outputs = np.union1d(np.arange(0, p, stride), [names.index(name) for name in problem.shown]).astype(np.int64)
    arrays: dict[str, Any] = {"outputs": outputs}
    if hasattr(model, "predict_dist"):
        prediction = model.predict_dist(X, outputs=list(outputs)) if stride > 1 else model.predict_dist(X)
        arrays |= {"mean": prediction.mean, "std": prediction.std}
        if len(X) * len(outputs) <= _MAX_INTERVALS:
            arrays["lower"], arrays["upper"] = prediction.interval(_LEVEL)
    elif hasattr(model, "predict"):
        arrays["mean"] = np.asarray(model.predict(X))[:, outputs]
    else:
        return
    if new is not None:
        arrays |= {"new_mean": new.mean, "new_std": new.std}
    if hasattr(model, "latent_mean_"):
        arrays["latent_mean"] = model.latent_mean_
    arrays |= _embedded(model, problem)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as stream:
        np.savez_compressed(stream, **{name: _small(array) for name, array in arrays.items()})
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def read_predictions(path: Path) -> dict[str, Any] | None:
    """The arrays of a run, or None if they were not saved."""
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _embedded(model: Any, problem: Problem) -> dict[str, Any]:
    """Embeddings of a sample of cells, at the means of their latent vectors, if the model embeds cells."""
    module = getattr(model, "model_", None)
    if not hasattr(module, "embed"):
        return {}
    assert module is not None
    n, p = problem.train.num_inputs, problem.train.num_outputs
    cells = np.arange(n * p)
    if len(cells) > _MAX_EMBEDDED:
        cells = np.sort(np.random.default_rng(0).choice(n * p, _MAX_EMBEDDED, replace=False))
    rows, columns = cells // p, cells % p
    device = next(module.parameters()).device
    with torch.no_grad():
        x = torch.as_tensor(model.scaling_.scale_x(problem.train.X[rows]), device=device)
        h = torch.as_tensor(model.latent_mean_[columns], device=device)
        embedding = module.embed(x, h).cpu().numpy()
    return {"embedding": embedding, "embedded_inputs": rows, "embedded_outputs": columns}


def _small(array: Any) -> Any:
    """Single precision is plenty for a figure."""
    return array.astype(np.float32) if np.asarray(array).dtype == np.float64 else array
