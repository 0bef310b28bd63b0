"""The paper's tables as data: which run belongs to each row, and what was published there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manygp.errors import SettingError
from manygp.paper import published
from manygp.paper.models import FACTORISATION, title_of
from manygp.paper.published import MSE, NLL, TIME, Value
from manygp.paper.records import Run
from manygp.paper.settings import settings_for

__all__ = ["TABLES", "PaperTable", "Row", "find_tables", "register_table", "runs_of"]


@dataclass(frozen=True)
class Row:
    """A model with settings on a data set, and what the paper says of it.

    Parameters
    ----------
    label
        The row's name.
    dataset, model
        What is run.
    changes
        Settings that differ from those of the preset.
    published
        Mean and standard deviation by metric; empty where the paper has nothing.
    """

    label: str
    dataset: str
    model: str
    changes: dict[str, Any] = field(default_factory=dict)
    published: Mapping[str, Value] = field(default_factory=dict)

    def run(self, preset: str, seed: int) -> Run:
        """The run behind this row."""
        settings = settings_for(self.dataset, self.model, preset) | self.changes
        return Run(self.dataset, self.model, preset, seed, settings)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its name, title, columns, rows (those of our own last), digits of an MSE."""

    name: str
    title: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    decimals: int = 3

    def digits(self, metric: str) -> int:
        """Digits after the point, as the paper prints them."""
        return self.decimals if metric == MSE else 3


TABLES: dict[str, PaperTable] = {}


def register_table(table: PaperTable) -> PaperTable:
    """Make a table known by its name."""
    if table.name in TABLES:
        raise SettingError(f"There is already a table {table.name!r}; choose another name.")
    TABLES[table.name] = table
    return table


def find_tables(names: str) -> list[PaperTable]:
    """Tables by their names, separated by commas; "all" for all of them."""
    if names == "all":
        return list(TABLES.values())
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in TABLES]
    if unknown or not chosen:
        raise SettingError(f"There is no table {(unknown or [names])[0]!r}; choose from: all, {', '.join(TABLES)}.")
    return [TABLES[name] for name in chosen]


def runs_of(tables: Iterable[PaperTable], preset: str, seeds: Sequence[int]) -> list[Run]:
    """The runs behind some tables, each once: all rows with the first seed, then with the next."""
    runs = [row.run(preset, seed) for seed in seeds for table in tables for row in table.rows]
    return list({run.key: run for run in runs}.values())


# -- the tables --------------------------------------------------------------------------------------------------

_DATASETS = {
    "eeg": "EEG",
    "sarcos": "SARCOS",
    "era5-random": "ERA5 (random)",
    "era5-block": "ERA5 (block-wise)",
    "copernicus": "Copernicus Marine",
    "ersst": "ERSST v5 (stand-in)",
    "prostate": "Spatial Transcriptomics",
    "visium-dlpfc": "Visium cortex (stand-in)",
}
# A factorisation cannot predict outputs that it has not seen.
_UNSEEN = ("copernicus", "ersst")
_RIVAL = title_of(FACTORISATION)
_AUTOMATIC = dict.fromkeys(("latent_dim", "num_inducing", "batch_inputs", "batch_outputs"), "auto")
# The published protocol holds latent vectors near their coordinates; the library can learn how they vary in space.
_OVER_THE_GLOBE = {
    "latent_prior_mean": None,
    "latent_prior_variance": 1.0,
    "coordinate_system": "sphere",
    "latent_dim": "auto",
    "num_inducing": "auto",
}


def _model_rows(dataset: str, values: Mapping[str, Mapping[str, Value]], suffix: str = "") -> list[Row]:
    """A row for each model, T-LVMOGP with sizes of its own choice, and the plain rival."""
    rows = [Row(title_of(model) + suffix, dataset, model, {}, cells) for model, cells in values.items()]
    rows.append(Row(f"T-LVMOGP, automatic sizes{suffix}", dataset, "tlvmogp", _AUTOMATIC))
    return [*rows, Row(_RIVAL + suffix, dataset, FACTORISATION)]


def _setting_rows(dataset: str, setting: str, values: Mapping[Any, Mapping[str, Value]]) -> list[Row]:
    """A row for each value of a setting of T-LVMOGP, and the plain rival."""
    rows = [Row(f"{value:g}", dataset, "tlvmogp", {setting: value}, cells) for value, cells in values.items()]
    return rows if dataset in _UNSEEN else [*rows, Row(_RIVAL, dataset, FACTORISATION)]


def _component_rows(dataset: str, values: Sequence[Mapping[str, Value]] = ({}, {}, {}, {})) -> list[Row]:
    """GS-LVMOGP with one, two and three components, and T-LVMOGP."""
    suffix = "" if values[0] else f" on {_DATASETS[dataset]}"
    rows = [
        Row(f"GS-LVMOGP, Q = {q}{suffix}", dataset, "gs-lvmogp", {"num_components": q}, values[q - 1])
        for q in (1, 2, 3)
    ]
    rows.append(Row(f"T-LVMOGP{suffix}", dataset, "tlvmogp", {}, values[3]))
    if dataset in _UNSEEN:
        return [*rows, Row(f"T-LVMOGP, latents over the globe{suffix}", dataset, "tlvmogp", _OVER_THE_GLOBE)]
    return [*rows, Row(_RIVAL + suffix, dataset, FACTORISATION)]


def _pair_rows(
    metric: str,
    changes: dict[str, Any],
    words: tuple[str, str],
    values: Mapping[str, tuple[Mapping[str, Value], Mapping[str, Value]]],
    stand_ins: Sequence[str],
) -> list[Row]:
    """T-LVMOGP changed and as it is on each data set, and the plain rival."""
    rows = []
    for dataset in (*values, *stand_ins):
        for place, own in enumerate((changes, {})):
            known = {metric: values[dataset][place][metric]} if dataset in values else {}
            rows.append(Row(f"{_DATASETS[dataset]}, {words[place]}", dataset, "tlvmogp", own, known))
        if dataset not in _UNSEEN:
            rows.append(Row(f"{_DATASETS[dataset]}, {_RIVAL}", dataset, FACTORISATION))
    return rows


def _register(name: str, title: str, metrics: tuple[str, ...], rows: Sequence[Row], decimals: int = 3) -> None:
    register_table(PaperTable(name, title, metrics, tuple(rows), decimals))


def _register_models() -> None:
    _register("eeg", "EEG: models", (MSE, NLL), _model_rows("eeg", published.EEG))
    clean = _model_rows("sarcos-clean", {model: {} for model in published.SARCOS}, ", without copied rows")
    sarcos = [*_model_rows("sarcos", published.SARCOS), *clean]
    _register("sarcos", "SARCOS: models", (MSE, NLL, TIME), sarcos)
    for split, values in (("random", published.ERA5_RANDOM), ("block", published.ERA5_BLOCK)):
        rows = _model_rows(f"era5-{split}", values)
        _register(f"era5-{split}", f"{_DATASETS[f'era5-{split}']}: models", (MSE, NLL, TIME), rows, 4)
    sea = [*_component_rows("copernicus", published.SEA), *_component_rows("ersst")]
    _register("copernicus", "Copernicus Marine: new outputs", (MSE, NLL, TIME), sea, 4)
    genes = [*_component_rows("prostate", published.GENES), *_component_rows("visium-dlpfc")]
    _register("transcriptomics", "Spatial Transcriptomics: counts", (MSE, NLL, TIME), genes)


def _register_settings() -> None:
    bounds = {
        "eeg": published.EEG_BOUNDS,
        "sarcos": published.SARCOS_BOUNDS,
        "era5-random": published.ERA5_RANDOM_BOUNDS,
        "era5-block": published.ERA5_BLOCK_BOUNDS,
        "copernicus": published.SEA_BOUNDS,
    }
    for dataset, values in bounds.items():
        rows = _setting_rows(dataset, "spectral_bound", values)
        if dataset == "copernicus":
            rows += [Row(f"{b:g} on {_DATASETS['ersst']}", "ersst", "tlvmogp", {"spectral_bound": b}) for b in values]
        title = f"{_DATASETS[dataset]}: spectral bound of T-LVMOGP (SN-UB)"
        _register(f"{dataset}-sn", title, (MSE, NLL), rows, 4 if dataset.startswith("era5") else 3)
    rows = _setting_rows("sarcos", "latent_dim", published.SARCOS_LATENT_DIMS)
    _register("sarcos-latent-dim", "SARCOS: latent dimensions of T-LVMOGP (D_H)", (MSE, NLL), rows)
    rows = _setting_rows("sarcos", "num_inducing", published.SARCOS_NUM_INDUCING)
    _register("sarcos-num-inducing", "SARCOS: inducing points of T-LVMOGP (M)", (MSE, NLL), rows)


def _register_ablations() -> None:
    ablations: dict[str, tuple[str, dict[str, Any], tuple[str, str], Any, list[str]]] = {
        "ablation-sn": (
            "spectral bound",
            {"spectral_bound": None},
            ("without spectral bound", "with"),
            published.SPECTRAL,
            ["ersst"],
        ),
        "ablation-nn": (
            "network",
            {"embedding": "identity"},
            ("without network", "with"),
            published.NETWORK,
            ["ersst"],
        ),
        "tighter-bound": (
            "tighter variational bound",
            {"bound": "tight"},
            ("tighter bound", "standard bound"),
            published.TIGHTER,
            ["ersst", "visium-dlpfc"],
        ),
    }
    for name, (title, changes, words, values, stand_ins) in ablations.items():
        for metric, word in ((NLL, "nll"), (MSE, "mse")):
            rows = _pair_rows(metric, changes, words, values, stand_ins)
            _register(f"{name}-{word}", f"T-LVMOGP with and without {title}: test {word.upper()}", (metric,), rows, 4)


_register_models()
_register_settings()
_register_ablations()
