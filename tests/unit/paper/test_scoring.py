"""One run: new outputs by both protocols, counts, what a record says of the machine, and how parameters are counted."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manygp.data import Grid
from manygp.estimators import ESTIMATORS
from manygp.paper import Dataset, Problem, Run
from manygp.paper.models import find_model
from manygp.paper.predictions import read_predictions
from manygp.paper.scoring import carry_out, count_parameters

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
    assert record is not None
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
        {"latent_prior_mean": "coordinates", "latent_prior_variance": 0.01, "num_neighbors": 6},
        {"latent_prior_mean": None, "coordinate_system": "sphere"},
    ],
    ids=["published protocol", "with neighbours", "latents over the globe"],
)
def test_new_outputs_from_where_they_are(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert _record(tmp_path, _sea, **settings)["new_mean"].shape == (8, 15)


def test_new_outputs_of_a_sum_of_separable_kernels(tmp_path: Path) -> None:
    settings = {"latent_prior_mean": "coordinates", "latent_prior_variance": 0.01}
    assert _record(tmp_path, _sea, "gs-lvmogp", **settings)["new_mean"].shape == (8, 15)


def test_a_plain_method_says_what_is_between_places(tmp_path: Path) -> None:
    run = Run("some", "interpolation", "fast", 0, {"coordinate_system": "sphere"})
    record = carry_out(run, Dataset("some", "Some", _sea), find_model("interpolation"), tmp_path, keep=True)
    assert record is not None
    assert "error" not in record, record["error"]
    assert record["metrics"]["test_mse"] < _sea(0).test.Y.var()
    assert 0.5 < record["metrics"]["coverage90"] <= 1.0
    saved = read_predictions(tmp_path / "predictions" / f"{run.key}.npz")
    assert saved is not None
    assert saved["new_std"].shape == (8, 15)


@pytest.mark.parametrize("model", ["tlvmogp", "gs-lvmogp"])
def test_counts_with_components_as_prior_means(tmp_path: Path, model: str) -> None:
    saved = _record(tmp_path, _slide, model, likelihood="zinb", latent_prior_mean="pca")
    assert (saved["mean"] >= 0).all()


def test_a_word_without_meaning_is_a_failed_run(tmp_path: Path) -> None:
    run = Run("some", "tlvmogp", "fast", 0, QUICK | {"latent_prior_mean": "coordinates"})
    record = carry_out(run, Dataset("some", "Some", _slide), None, tmp_path, keep=False)
    assert record is not None
    assert "latent_prior_mean='coordinates' has no meaning" in record["error"]


# -- parameters ----------------------------------------------------------------------------------------------------

D, P, N, L, M, Q, H, J, K = 2, 6, 9, 3, 5, 2, 3, 4, 7
# Appendix I leaves out kernels, and what belongs to the likelihood or stands beside the processes.
KERNELS = r"raw_lengthscale|raw_outputscale|raw_share"
LEFT_OUT = rf"{KERNELS}|likelihood|log_latent_noise|basis.weight|mixture.(mean|log_share)|^bias$"
LATENTS = {"num_features": D, "num_outputs": P, "latent_dim": H, "prior_mean": False}
PAIRS = LATENTS | {"num_inducing_latents": J, "num_inducing_inputs": K}
PROCESSES = {"num_features": D, "num_outputs": P, "num_latents": L, "num_inducing": M}
EMBEDDED = {"spectral_bound": 0.1, "terms": [], "num_neighbors": 0, "coordinates": None}
ROWS = {"num_inputs": N, "num_patterns": 0, "projection": "pseudo-inverse"}
COUNTS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "sv-lmc": ({"mixing_posterior": "point"}, PROCESSES, L * P + L * M * D + L * M + L * M**2),
    "oilmm": ({}, PROCESSES | ROWS, 2 * L + L * M * D + L * M + L * M**2),
    "sgprn": (
        {},
        PROCESSES | {"num_inputs": N, "output_shape": [2, 3]},
        L * N + 2 * N**2 + 2 * L**2 + L * N * P + 2**2 + 3**2,
    ),
    "g-mogp": ({}, PROCESSES | {"num_kernels": None}, 2 * P**2 + M * D * P + M * P + M**2 * P),
    "ind-gp": ({}, PROCESSES | {"num_cells": None}, M * D * P + M * P + M**2 * P),
    "lvmogp": ({}, PAIRS | {"num_components": 1}, H * P + H**2 * P + K * J + K**2 + J**2 + J * H + K * D),
    "gs-lvmogp": (
        {"num_components": Q},
        PAIRS | {"num_components": Q},
        Q * H * P + Q * H**2 * P + K * J + K**2 + J**2 + Q * J * H + K * D,
    ),
    # Latent vectors, three blocks of the network, Z and q(u); the appendix does not have it.
    "tlvmogp": (
        {},
        LATENTS | EMBEDDED | {"num_inducing": M},
        H * P + H**2 * P + 3 * ((D + H) ** 2 + D + H) + M * (D + H) + M + M**2,
    ),
}


def test_every_model_has_its_count() -> None:
    assert COUNTS.keys() == ESTIMATORS.keys()


@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_counted_as_in_the_paper(name: str, preset: str) -> None:
    """Appendix I, whether q(u) is moved by gradients or by natural steps."""
    settings, sizes, expected = COUNTS[name]
    estimator = ESTIMATORS[name](preset=preset, **settings)
    parts = {field.name for field in fields(estimator._config_class)}
    model = estimator._restore({name: size for name, size in sizes.items() if name in parts})
    beside = [values for key, values in model.named_parameters() if re.search(LEFT_OUT, key)]
    # Factors of latent vectors are stored as triangles, which the paper counts as squares.
    stored = [values for key, values in model.named_parameters() if key == "latents.scale"]
    triangles = sum(values.shape[0] * H**2 - values.numel() for values in stored)
    assert count_parameters(model) - sum(values.numel() for values in beside) + triangles == expected
    assert model.num_parameters == expected


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_presets_of_the_published_eeg_model_have_about_the_same_number(preset: str) -> None:
    sizes = {"num_features": 1, "num_outputs": 7, "latent_dim": 3, "num_inducing": 200, "prior_mean": False}
    model = ESTIMATORS["tlvmogp"](preset=preset)._restore(sizes | EMBEDDED)
    # 60 in the network (table of settings), 7 (3 + 6) of latents, 200 (4 + 1 + 200) of Z and q(u), kernel 5, noise 1.
    # What outputs share has a scale of its own where the start is not the published one.
    assert count_parameters(model) == 60 + 63 + 41_000 + 6 + (preset == "fast")
