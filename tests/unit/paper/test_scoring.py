"""One run: new outputs by both protocols, counts, and what a record says of the machine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manygp.data import Grid
from manygp.paper import Dataset, Problem, Run
from manygp.paper.predictions import read_predictions
from manygp.paper.scoring import carry_out

RNG = np.random.default_rng(0)
QUICK = {"epochs": 2, "num_inducing": 12, "latent_dim": 2}
QUICK_COMPONENTS = {
    "epochs": 2,
    "num_components": 2,
    "num_inducing_latents": 4,
    "num_inducing_inputs": 5,
    "latent_dim": 2,
}


def _sea(seed: int) -> Problem:
    """A field over time of which half of the places are unseen."""
    places = RNG.uniform([40.0, -10.0], [60.0, 10.0], (30, 2))
    X = np.linspace(-1, 1, 8)[:, None]
    Y = np.sin(3 * X + places[:, 0] / 10) + places[:, 1] / 10
    coordinates = (places - places.mean(axis=0)) / places.std(axis=0)
    parts = [Grid(X, np.ascontiguousarray(Y[:, half])) for half in (slice(0, 15), slice(15, 30))]
    here, there = slice(0, 15), slice(15, 30)
    return Problem(
        *parts,
        places=places[here],
        coordinates=coordinates[here],
        new_places=places[there],
        new_coordinates=coordinates[there],
    )


def _slide(seed: int) -> Problem:
    X = RNG.normal(size=(30, 2))
    Y = RNG.poisson(np.exp(X[:, :1] * np.linspace(-1, 1, 12))).astype(float)
    held_out = RNG.random(Y.shape) < 0.1
    return Problem(Grid(X, Y, mask=~held_out), Grid(X, Y, mask=held_out), is_counts=True)


def _record(folder: Path, problem: Any, model: str = "tlvmogp", **settings: Any) -> dict[str, Any]:
    run = Run("some", model, "fast", 0, (QUICK if model == "tlvmogp" else QUICK_COMPONENTS) | settings)
    record = carry_out(run, Dataset("some", "Some", problem), None, folder, keep=True)
    assert "error" not in record, record["error"]
    assert np.isfinite(
        [record["metrics"][f"{part}_{name}"] for part in ("test", "train") for name in ("mse", "nll")]
    ).all()
    assert record["num_parameters"] > 50
    assert record["peak_memory_mb"] > 50
    assert record["epochs"] == 2
    saved = read_predictions(folder / "predictions" / f"{run.key}.npz")
    assert saved is not None
    return saved


@pytest.mark.parametrize(
    "settings",
    [
        {"latent_prior_mean": "coordinates", "latent_prior_variance": 0.01},
        {"latent_prior_mean": None, "coordinate_system": "sphere"},
    ],
    ids=["published protocol", "latents over the globe"],
)
def test_new_outputs_from_where_they_are(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert _record(tmp_path, _sea, **settings)["new_mean"].shape == (8, 15)


def test_new_outputs_of_a_sum_of_separable_kernels(tmp_path: Path) -> None:
    settings = {"latent_prior_mean": "coordinates", "latent_prior_variance": 0.01}
    assert _record(tmp_path, _sea, "gs-lvmogp", **settings)["new_mean"].shape == (8, 15)


@pytest.mark.parametrize("model", ["tlvmogp", "gs-lvmogp"])
def test_counts_with_components_as_prior_means(tmp_path: Path, model: str) -> None:
    saved = _record(tmp_path, _slide, model, likelihood="zinb", latent_prior_mean="pca")
    assert (saved["mean"] >= 0).all()


def test_a_word_without_meaning_is_a_failed_run(tmp_path: Path) -> None:
    run = Run("some", "tlvmogp", "fast", 0, QUICK | {"latent_prior_mean": "coordinates"})
    record = carry_out(run, Dataset("some", "Some", _slide), None, tmp_path, keep=False)
    assert "latent_prior_mean='coordinates' has no meaning" in record["error"]
