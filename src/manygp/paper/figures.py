"""The paper's figures from saved runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manygp.data.table import FloatArray
from manygp.errors import DataError
from manygp.paper.datasets import find_dataset
from manygp.paper.models import title_of
from manygp.paper.predictions import read_predictions
from manygp.paper.problem import Problem, values_of
from manygp.paper.tables import AUTOMATIC, PUBLISHED_SIZES, TABLES, Row
from manygp.plots import Figure, plot_counts, plot_latents, plot_map, plot_series

_ELECTRODES = ("F2", "F1", "FZ")
_ELECTRODE_MODELS = ("ind-gp", "sv-lmc", "tlvmogp")
# Rows of maps: the truth, and these models as far as they were run.
_MAPPED = ("SV-LMC", "GS-LVMOGP", "OILMM", "low rank", "interpolation", PUBLISHED_SIZES, AUTOMATIC)
_NUM_GENES, _NUM_MODULES = 4, 6


@dataclass(frozen=True)
class _Saved:
    """A row with the arrays that its first saved run left."""

    row: Row
    seed: int
    arrays: dict[str, Any]


def draw_figures(folder: Path, preset: str = "fast") -> tuple[list[Path], list[str]]:
    """Draw what predictions saved beside records allow, into `figures` there; return them, and what is missing."""
    drawings: list[tuple[str, Callable[[str, list[_Saved]], dict[str, Figure]]]] = [
        ("eeg", _electrodes),
        ("era5-random", _land_maps),
        ("era5-block", _land_maps),
        ("copernicus", _sea_maps),
        ("transcriptomics", _gene_maps),
    ]
    drawn, missing = [], []
    for table, draw in drawings:
        rows = TABLES[table].rows
        for dataset in dict.fromkeys(row.dataset for row in rows):
            saved = _saved([row for row in rows if row.dataset == dataset], folder, preset)
            if not saved:
                missing.append(f"{dataset}: no run of table {table} has saved predictions")
                continue
            try:
                figures = draw(dataset, saved)
            except DataError as error:
                missing.append(f"{dataset}: {error}")
                continue
            for name, figure in (figures | _spaces(dataset, saved)).items():
                drawn.append(folder / "figures" / f"{table}-{dataset}-{name}.png")
                drawn[-1].parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(drawn[-1], dpi=80)
    return drawn, missing


def _saved(rows: Sequence[Row], folder: Path, preset: str) -> list[_Saved]:
    """The rows that have predictions, of the first seed that does."""
    found = []
    for row in rows:
        for seed in range(10):
            arrays = read_predictions(folder / "predictions" / f"{row.run(preset, seed).key}.npz")
            if arrays is not None:
                found.append(_Saved(row, seed, arrays))
                break
    return found


def _electrodes(dataset: str, saved: list[_Saved]) -> dict[str, Figure]:
    """Electrodes whose end is held out, with 95% intervals of each model."""
    problem = find_dataset(dataset).load(0)
    names = list(problem.train.output_names)
    chosen = [names.index(name) for name in _ELECTRODES]
    # Of each model the one with the published sizes.
    shown = [
        one
        for model in _ELECTRODE_MODELS
        for one in saved
        if one.row.model == model and not one.row.changes and "lower" in one.arrays
    ]
    if not shown:
        raise DataError("No run of Ind-GP, SV-LMC or T-LVMOGP has saved intervals.")
    pick = [(output, one) for output in chosen for one in shown]
    means, lower, upper = (
        np.column_stack([one.arrays[name][:, output] for output, one in pick]) for name in ("mean", "lower", "upper")
    )
    outputs = [output for output, _ in pick]
    figure = plot_series(
        problem.train.X,
        means,
        (lower, upper),
        observed=values_of(problem.train)[:, outputs],
        held_out=values_of(problem.test)[:, outputs],
        names=[f"{names[output]}: {title_of(one.row.model)}" for output, one in pick],
        level=0.95,
        x_label=problem.input_label,
        y_label=f"voltage, {problem.unit}",
    )
    return {"electrodes": figure}


def _land_maps(dataset: str, saved: list[_Saved]) -> dict[str, Figure]:
    """The month with most held-out cells: truth, data, and what each model predicts."""
    problem = find_dataset(dataset).load(0)
    assert problem.places is not None
    seen, held_out = values_of(problem.train), values_of(problem.test)
    month = int(np.argmax((~np.isnan(held_out)).sum(axis=1)))
    truth = np.where(np.isnan(seen), held_out, seen)[month]
    shown = [one for one in _mapped(saved) if one.arrays["mean"].shape == seen.shape]
    figure = plot_map(
        problem.places[:, 1],
        problem.places[:, 0],
        {"truth": truth} | {one.row.label: one.arrays["mean"][month] for one in shown},
        # What was learnt from has hardly an error.
        error={one.row.label: one.arrays["mean"][month] - held_out[month] for one in shown},
        uncertainty={one.row.label: one.arrays["std"][month] for one in shown if "std" in one.arrays},
        unit=f"temperature, {problem.unit}",
        title=f"{find_dataset(dataset).title}, month {month + 1} of {len(seen)}; errors where held out",
    )
    return {"maps": figure}


def _mapped(saved: list[_Saved]) -> list[_Saved]:
    """The models of maps, in their order."""
    names = {one.row.label.partition(" on ")[0]: one for one in reversed(saved)}
    return [names[label] for label in _MAPPED if label in names]


def _sea_maps(dataset: str, saved: list[_Saved]) -> dict[str, Figure]:
    """A month at places that no model has seen: truth, and prediction, error and uncertainty of each model."""
    shown = [one for one in _mapped(saved) if "new_mean" in one.arrays]
    if not shown:
        raise DataError("No saved run has predicted new outputs.")
    problem = find_dataset(dataset).load(shown[0].seed)
    assert problem.new_places is not None
    shown = [one for one in shown if one.seed == shown[0].seed]
    month = len(problem.test.X) // 2
    truth = _in_unit(problem, problem.test.Y[month])
    means = {one.row.label.partition(" on ")[0]: _in_unit(problem, one.arrays["new_mean"][month]) for one in shown}
    spreads = {one.row.label.partition(" on ")[0]: problem.scale * one.arrays["new_std"][month] for one in shown}
    figure = plot_map(
        problem.new_places[:, 1],
        problem.new_places[:, 0],
        {"truth": truth} | means,
        error={name: mean - truth for name, mean in means.items()},
        uncertainty=spreads,
        unit=problem.unit,
        title=f"{find_dataset(dataset).title}: month {month + 1} of {len(problem.test.X)} at places without data",
        axis_labels=None if problem.is_globe else ("east, standard deviations", "north, standard deviations"),
    )
    return {"extrapolation": figure}


def _gene_maps(dataset: str, saved: list[_Saved]) -> dict[str, Figure]:
    """Counts and predicted means of a few genes over the slide, and the histogram of all counts."""
    problem = find_dataset(dataset).load(saved[0].seed)
    table = problem.train
    names = list(table.output_names)
    figures = {"histogram": plot_counts(table.Y, label="counts of a gene in a spot")}
    saved = [one for one in saved if one.seed == saved[0].seed]
    predicted = set.intersection(*(set(one.arrays["outputs"].tolist()) for one in saved))
    for output in _genes_to_show(problem, predicted):
        gene = str(names[output])
        panels: dict[str, FloatArray] = {"counts": table.Y[:, output]}
        for one in saved:
            panels[one.row.label] = one.arrays["mean"][:, one.arrays["outputs"].tolist().index(output)]
        figures[f"gene-{gene.lower()}"] = plot_map(
            table.X[:, 0],
            -table.X[:, 1],
            panels,
            unit="counts",
            title=gene,
            axis_labels=("x, standard deviations", "y, standard deviations"),
        )
    return figures


def _genes_to_show(problem: Problem, predicted: set[int]) -> list[int]:
    """Of genes that all models have predicted, those with a name in the literature, then the most variable ones."""
    names, spread = list(problem.train.output_names), np.nanvar(problem.train.Y, axis=0)
    known = [output for name in problem.shown if (output := names.index(name)) in predicted]
    others = sorted(predicted.difference(known), key=lambda output: -spread[output])
    return (known + others)[:_NUM_GENES]


def _spaces(dataset: str, saved: list[_Saved]) -> dict[str, Figure]:
    """Latent map and embedding of T-LVMOGP, coloured by what is known of outputs and inputs."""
    ours = next((one for one in saved if one.row.model == "tlvmogp" and "latent_mean" in one.arrays), None)
    if ours is None:
        return {}
    problem = find_dataset(dataset).load(ours.seed)
    colours: dict[str, Any] = {"output": np.asarray(problem.train.output_names).astype(str)}
    if problem.places is not None:
        unit = "degrees" if problem.is_globe else "standard deviations"
        colours = {f"{unit} north": problem.places[:, 0], f"{unit} east": problem.places[:, 1]}
    elif problem.is_counts:
        means = np.nanmean(values_of(problem.train), axis=0)
        colours = {"genes like": _modules(problem), "log mean count": np.log(np.maximum(means, 1e-3))}
    title = f"{find_dataset(dataset).title}: latent vectors of outputs"
    figures = {"latents": plot_latents(ours.arrays["latent_mean"], colours, title=title)}
    if "embedding" in ours.arrays:
        rows, outputs = ours.arrays["embedded_inputs"], ours.arrays["embedded_outputs"]
        of_cells = {name: values[outputs] for name, values in colours.items()}
        of_cells |= {problem.input_label: problem.train.X[rows, 0]}
        title = f"{find_dataset(dataset).title}: embedding of cells"
        figures["embedding"] = plot_latents(ours.arrays["embedding"], of_cells, title=title)
    return figures


def _modules(problem: Problem) -> Any:
    """Groups of genes with like patterns over the slide, each named after its most variable gene, shape (p,)."""
    from sklearn.cluster import KMeans

    logs = np.log1p(np.nan_to_num(values_of(problem.train)))
    spread = np.maximum(logs.std(axis=0), 1e-9)
    patterns = (logs - logs.mean(axis=0)) / spread
    # What is left after a few components is the noise of counting.
    _, weights, loadings = np.linalg.svd(patterns - patterns.mean(axis=1, keepdims=True), full_matrices=False)
    features = (weights[:_NUM_MODULES, None] * loadings[:_NUM_MODULES]).T
    groups = KMeans(min(_NUM_MODULES, len(features)), n_init=10, random_state=0).fit(features).labels_
    names = np.asarray(problem.train.output_names).astype(str)
    return np.array([names[np.argmax(np.where(groups == group, spread, 0.0))] for group in groups])


def _in_unit(problem: Problem, values: FloatArray) -> FloatArray:
    return problem.center + problem.scale * values
