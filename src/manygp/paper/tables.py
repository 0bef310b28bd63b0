"""The paper's tables as data: which run belongs to each row, and what was published there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manygp.errors import SettingError
from manygp.paper import published
from manygp.paper.models import title_of
from manygp.paper.published import MSE, NLL, TIME, Value
from manygp.paper.records import Run
from manygp.paper.settings import settings_for


@dataclass(frozen=True)
class Row:
    """A model with settings on a data set, and what the paper says of it."""

    #: The row's name.
    label: str
    #: What is run.
    dataset: str
    model: str
    #: Settings that differ from those of the preset.
    changes: dict[str, Any] = field(default_factory=dict)
    #: Mean and standard deviation by metric; empty where the paper has nothing.
    published: Mapping[str, Value] = field(default_factory=dict)

    def run(self, preset: str, seed: int) -> Run:
        """The run behind this row."""
        settings = settings_for(self.dataset, self.model, preset) | self.changes
        return Run(self.dataset, self.model, preset, seed, settings)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    #: For the command line and for people.
    name: str
    title: str
    #: Columns.
    metrics: tuple[str, ...]
    #: What the table is about.
    rows: tuple[Row, ...]
    #: Digits of an MSE after the point.
    decimals: int = 3
    #: Rows of other tables on the same data, told below in a line: what the rows are to be held against.
    beside: tuple[Row, ...] = ()

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
    runs = [row.run(preset, seed) for seed in seeds for table in tables for row in (*table.rows, *table.beside)]
    return list({run.key: run for run in runs}.values())


# -- the tables --------------------------------------------------------------------------------------------------

_DATASETS = {
    "eeg": "EEG",
    "sarcos": "SARCOS",
    "sarcos-clean": "SARCOS without copies",
    "sarcos-published": "SARCOS, the authors' split",
    "era5-random": "ERA5 (random)",
    "era5-block": "ERA5 (block-wise)",
    "copernicus": "Copernicus Marine",
    "ersst": "ERSST v5 (stand-in)",
    "prostate": "Spatial Transcriptomics",
    "visium-dlpfc": "Visium cortex (stand-in)",
}
# Data sets whose outputs to predict have no observed cell, and those of counts.
_UNSEEN, _COUNTS = ("copernicus", "ersst"), ("prostate", "visium-dlpfc")
_SARCOS = ("sarcos", "sarcos-clean", "sarcos-published")
_AUTOMATIC = dict.fromkeys(("latent_dim", "num_inducing", "num_neighbors", "batch_inputs", "batch_outputs"), "auto")
# The published protocol holds latent vectors near their coordinates; the library can learn how they vary in space.
_BY_PLACE = {"latent_prior_mean": None, "latent_prior_variance": 1.0}
# What places of new outputs are measured on.
_SYSTEMS = {"copernicus": {"coordinate_system": "flat"}, "ersst": {"coordinate_system": "sphere"}}
PUBLISHED_SIZES, AUTOMATIC = "T-LVMOGP", "T-LVMOGP, automatic"


def _plain_rows(dataset: str, suffix: str = "") -> list[Row]:
    """Plain methods: those that make sense of a data set."""
    if dataset in _UNSEEN:
        # New outputs have nothing in common with others but where they are.
        return [Row(title_of("interpolation") + suffix, dataset, "interpolation", _SYSTEMS[dataset])]
    names = [
        "interpolation",
        "nearest-rows",
        "ridge-outputs",
        "low-rank",
        *(["boosting"] if dataset in _SARCOS else []),
    ]
    # Outputs of every data set measure the same thing.
    own: dict[str, dict[str, Any]] = {"low-rank": {"scale": "global"}}
    return [Row(title_of(name) + suffix, dataset, name, own.get(name, {})) for name in names]


def _own_rows(dataset: str, published: Mapping[str, Value] | None = None, suffix: str = "") -> list[Row]:
    """T-LVMOGP with published sizes and with sizes of its own choice, without neighbours and with them."""
    automatic = _AUTOMATIC | (_BY_PLACE | _SYSTEMS[dataset] if dataset in _UNSEEN else {})
    rows: list[tuple[str, dict[str, Any]]] = [(PUBLISHED_SIZES, {})]
    rows += [(f"{PUBLISHED_SIZES} with neighbours", {"num_neighbors": "auto"})]
    rows += [(f"{AUTOMATIC}, without neighbours", automatic | {"num_neighbors": 0}), (AUTOMATIC, automatic)]
    # Counts know no neighbours.
    rows = [rows[0], rows[-1]] if dataset in _COUNTS else rows
    return [
        Row(label + suffix, dataset, "tlvmogp", changes, (published or {}) if label == PUBLISHED_SIZES else {})
        for label, changes in rows
    ]


def _model_rows(dataset: str, values: Mapping[str, Mapping[str, Value]], suffix: str = "") -> list[Row]:
    """A row for each model, those of T-LVMOGP last, and the plain methods."""
    rivals = [
        Row(title_of(name) + suffix, dataset, name, {}, cells) for name, cells in values.items() if name != "tlvmogp"
    ]
    return [*rivals, *_own_rows(dataset, values["tlvmogp"], suffix), *_plain_rows(dataset, suffix)]


def _component_rows(dataset: str, values: Sequence[Mapping[str, Value]] = ({}, {}, {}, {})) -> list[Row]:
    """GS-LVMOGP with one, two and three components, T-LVMOGP, and the plain methods."""
    suffix = "" if values[0] else f" on {_DATASETS[dataset]}"
    rows = [
        Row(f"GS-LVMOGP, Q = {q}{suffix}", dataset, "gs-lvmogp", {"num_components": q}, values[q - 1])
        for q in (1, 2, 3)
    ]
    return [*rows, *_own_rows(dataset, values[3], suffix), *_plain_rows(dataset, suffix)]


def _setting_rows(dataset: str, setting: str, values: Mapping[Any, Mapping[str, Value]]) -> list[Row]:
    """A row for each value of a setting of T-LVMOGP with the published sizes."""
    return [Row(f"{value:g}", dataset, "tlvmogp", {setting: value}, cells) for value, cells in values.items()]


def _pair_rows(
    changes: dict[str, Any],
    words: tuple[str, str],
    values: Mapping[str, tuple[Mapping[str, Value], Mapping[str, Value]]],
    stand_ins: Sequence[str],
) -> list[Row]:
    """T-LVMOGP with the published sizes, changed and as it is, on each data set."""
    return [
        Row(f"{_DATASETS[dataset]}, {words[place]}", dataset, "tlvmogp", own, values.get(dataset, ({}, {}))[place])
        for dataset in (*values, *stand_ins)
        for place, own in enumerate((changes, {}))
    ]


def _register(name: str, title: str, metrics: tuple[str, ...], rows: Sequence[Row], decimals: int = 3) -> None:
    register_table(PaperTable(name, title, metrics, tuple(rows), decimals))


def _register_beside(name: str, title: str, rows: Sequence[Row], decimals: int = 3) -> None:
    """A table of settings, with T-LVMOGP as it is and plain methods beside it."""
    datasets = dict.fromkeys(row.dataset for row in rows)
    beside = (row for dataset in datasets for row in (*_own_rows(dataset), *_plain_rows(dataset)))
    register_table(PaperTable(name, title, (MSE, NLL), tuple(rows), decimals, tuple(beside)))


def _register_models() -> None:
    _register("eeg", "EEG: models", (MSE, NLL), _model_rows("eeg", published.EEG))
    nothing: dict[str, Any] = {model: {} for model in published.SARCOS}
    sarcos = _model_rows("sarcos", published.SARCOS)
    sarcos += _model_rows("sarcos-clean", nothing, ", without copied rows")
    sarcos += _model_rows("sarcos-published", nothing, ", the authors' split")
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
        _register_beside(f"{dataset}-sn", title, rows, 4 if dataset.startswith("era5") else 3)
    rows = _setting_rows("sarcos", "latent_dim", published.SARCOS_LATENT_DIMS)
    _register_beside("sarcos-latent-dim", "SARCOS: latent dimensions of T-LVMOGP (D_H)", rows)
    rows = _setting_rows("sarcos", "num_inducing", published.SARCOS_NUM_INDUCING)
    _register_beside("sarcos-num-inducing", "SARCOS: inducing points of T-LVMOGP (M)", rows)


def _register_ablations() -> None:
    ablations: tuple[tuple[str, str, dict[str, Any], tuple[str, str], Any, list[str]], ...] = (
        (
            "ablation-sn",
            "T-LVMOGP with and without spectral bound",
            {"spectral_bound": None},
            ("without spectral bound", "with"),
            published.SPECTRAL,
            ["ersst"],
        ),
        (
            "ablation-nn",
            "T-LVMOGP with and without network",
            {"embedding": "identity"},
            ("without network", "with"),
            published.NETWORK,
            ["ersst"],
        ),
        (
            "tighter-bound",
            "T-LVMOGP with the tighter variational bound",
            {"bound": "tight"},
            ("tighter bound", "standard bound"),
            published.TIGHTER,
            ["ersst", "visium-dlpfc"],
        ),
    )
    for name, title, changes, words, values, stand_ins in ablations:
        _register_beside(name, title, _pair_rows(changes, words, values, stand_ins), 4)


_register_models()
_register_settings()
_register_ablations()
