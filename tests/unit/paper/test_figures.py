"""Figures of the paper from saved runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from manygp.data import Grid
from manygp.paper import DATASETS, TABLES, Dataset, Problem, Run, predictions
from manygp.paper.figures import draw_figures
from manygp.paper.predictions import read_predictions, save_predictions

RNG = np.random.default_rng(0)
PLACES = RNG.uniform([50.0, -8.0], [60.0, 2.0], (12, 2))


def _grids(names: tuple[str, ...], values: np.ndarray) -> tuple[Grid, Grid]:
    X = np.linspace(-1, 1, len(values))[:, None]
    held = RNG.random(values.shape) < 0.3
    return Grid(X, values, names, mask=~held), Grid(X, values, names, mask=held)


def _problem(name: str) -> Problem:
    if name == "eeg":
        return Problem(*_grids(("F1", "F2", "F3", "F4", "F5", "F6", "FZ"), RNG.normal(size=(9, 7))))
    if name == "visium-dlpfc":
        counts = RNG.poisson(3.0, (20, 3)).astype(float)
        slide = [Grid(RNG.normal(size=(20, 2)), counts, ("MBP", "X", "PCP4"))] * 2
        return Problem(*slide, unit="counts", is_counts=True, shown=("PCP4", "MBP"))
    parts = _grids(tuple(map(str, range(12))), RNG.normal(size=(5, 12)))
    new = {"new_places": PLACES, "new_coordinates": PLACES} if name == "ersst" else {}
    return Problem(*parts, places=PLACES, coordinates=PLACES, unit="°C", **new)


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> dict[str, Problem]:
    """Small tables in place of the data sets."""
    made = {name: _problem(name) for name in ("eeg", "era5-random", "ersst", "visium-dlpfc")}
    for name, problem in made.items():
        monkeypatch.setitem(DATASETS, name, Dataset(name, name, lambda seed, p=problem: p))
    return made


def _write(folder: Path, table: str, dataset: str, model: str, problem: Problem, **arrays: Any) -> None:
    row = next(row for row in TABLES[table].rows if (row.dataset, row.model) == (dataset, model))
    n, p = problem.train.Y.shape
    told = {"outputs": np.arange(p), "mean": np.zeros((n, p)), "std": np.ones((n, p))} | arrays
    path = folder / "predictions" / f"{row.run('fast', 1).key}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **told)


def test_what_was_saved_is_drawn_and_the_rest_is_named(tmp_path: Path, problems: dict[str, Problem]) -> None:
    ends = {"lower": -np.ones((9, 7)), "upper": np.ones((9, 7))}
    space = {"latent_mean": RNG.normal(size=(12, 3)), "embedding": RNG.normal(size=(6, 4))}
    space |= {"embedded_inputs": np.arange(6) % 5, "embedded_outputs": np.arange(6)}
    _write(tmp_path, "eeg", "eeg", "ind-gp", problems["eeg"], **ends)
    _write(tmp_path, "eeg", "eeg", "sv-lmc", problems["eeg"], **ends)
    _write(tmp_path, "era5-random", "era5-random", "tlvmogp", problems["era5-random"], **space)
    new = {"new_mean": np.zeros((5, 12)), "new_std": np.ones((5, 12))}
    _write(tmp_path, "copernicus", "ersst", "tlvmogp", problems["ersst"], **new)
    some = {"outputs": np.array([1, 2]), "mean": np.zeros((20, 2)), "std": np.ones((20, 2))}
    _write(tmp_path, "transcriptomics", "visium-dlpfc", "tlvmogp", problems["visium-dlpfc"], **some)
    drawn, missing = draw_figures(tmp_path)
    assert [path.name for path in drawn] == [
        "eeg-eeg-electrodes.png",
        "era5-random-era5-random-maps.png",
        "era5-random-era5-random-latents.png",
        "era5-random-era5-random-embedding.png",
        "copernicus-ersst-extrapolation.png",
        "transcriptomics-visium-dlpfc-histogram.png",
        "transcriptomics-visium-dlpfc-gene-pcp4.png",
        "transcriptomics-visium-dlpfc-gene-x.png",
    ]
    assert all(path.stat().st_size > 5_000 for path in drawn)
    assert [text.split(":")[0] for text in missing] == ["era5-block", "copernicus", "prostate"]


class Model:
    """Just enough of an estimator."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.tile(np.arange(3.0), (len(X), 1))


def test_predictions_are_saved_in_single_precision(tmp_path: Path) -> None:
    problem = Problem(*[Grid(np.zeros((4, 1)), np.zeros((4, 3)))] * 2)
    path = tmp_path / "predictions" / f"{Run('a', 'b', 'fast', 0).key}.npz"
    assert read_predictions(path) is None
    save_predictions(path, Model(), problem)
    arrays = read_predictions(path)
    assert arrays is not None
    assert arrays["mean"].dtype == np.float32
    np.testing.assert_array_equal(arrays["mean"][0], [0, 1, 2])


def test_outputs_to_show_are_saved_among_every_so_manieth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "_MAX_CELLS", 4)
    problem = Problem(*[Grid(np.zeros((4, 1)), np.zeros((4, 3)), ("a", "b", "c"))] * 2, shown=("c",))
    save_predictions(tmp_path / "some.npz", Model(), problem)
    arrays = read_predictions(tmp_path / "some.npz")
    assert arrays is not None
    np.testing.assert_array_equal(arrays["outputs"], [0, 2])
    np.testing.assert_array_equal(arrays["mean"][0], [0, 2])


def test_embeddings_and_intervals_of_a_fitted_model(tmp_path: Path) -> None:
    import manygp

    X = np.linspace(0, 1, 10)[:, None]
    Y = np.sin(6 * X + np.arange(3))
    model = manygp.TLVMOGP(epochs=1, latent_dim=2, num_inducing=5, progress=False).fit(X, Y)
    save_predictions(tmp_path / "x.npz", model, Problem(Grid(X, Y), Grid(X, Y)))
    arrays = read_predictions(tmp_path / "x.npz")
    assert arrays is not None
    assert arrays["mean"].shape == arrays["lower"].shape == (10, 3)
    assert (arrays["lower"] < arrays["mean"]).all()
    assert arrays["latent_mean"].shape == (3, 2)
    assert arrays["embedding"].shape == (30, 3)
