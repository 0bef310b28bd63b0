"""Data sets as data: a name, its files, and a loader that returns a table and its split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from manygp.errors import SettingError
from manygp.paper import counts, fields
from manygp.paper.files import DataFile, find
from manygp.paper.problem import Problem


@dataclass(frozen=True)
class Dataset:
    """A data set by name."""

    #: For the command line and for people.
    name: str
    title: str
    #: From a seed to a problem; the seed chooses the split, unless the source fixes it.
    load: Callable[[int], Problem]
    #: What the loader reads; none if it makes its data.
    files: Sequence[DataFile] = ()
    #: What a reader should know of the data or the split.
    note: str = ""


DATASETS: dict[str, Dataset] = {}


def register_dataset(dataset: Dataset) -> Dataset:
    """Make a data set known by its name to the runner and the command line."""
    if dataset.name in DATASETS:
        raise SettingError(f"There is already a data set {dataset.name!r}; choose another name.")
    DATASETS[dataset.name] = dataset
    return dataset


def find_dataset(name: str) -> Dataset:
    """Look a data set up by its name."""
    try:
        return DATASETS[name]
    except KeyError:
        raise SettingError(f"There is no data set {name!r}; choose one of: {', '.join(DATASETS)}.") from None


_REPOSITORY = "https://github.com/XiaoyuJiang17/T-LVMOGP-official"
_TERMS = f"the authors' repository {_REPOSITORY}, MIT licence"
_RAW = "https://raw.githubusercontent.com/XiaoyuJiang17/T-LVMOGP-official/main/data"
_ARM = "http://www.gaussianprocess.org/gpml/data"
_SLIDE = "https://cf.10xgenomics.com/samples/spatial-exp/1.3.0/Visium_FFPE_Human_Prostate_Cancer"


def _published(name: str, sha256: str | None = None) -> DataFile:
    return DataFile(name, f"{_RAW}/{name}", _TERMS, sha256)


def _arm(name: str, sha256: str) -> DataFile:
    return DataFile(name, f"{_ARM}/{name}", "https://gaussianprocess.org/gpml/data", sha256)


def _slide(name: str) -> DataFile:
    name = f"Visium_FFPE_Human_Prostate_Cancer_{name}"
    return DataFile(name, f"{_SLIDE}/{name}", "10x Genomics, Visium FFPE human prostate cancer, CC BY 4.0")


_EEG = _published("eeg.h5", "b485d753d44e773fd4fb7445d840a3d1b76283b2be7d82f46c2b8c2ae0595c06")
_ERA5 = {
    "random": _published("era5_random.h5", "a15674d2dc4740e88555e0e9ba5ab4510380aacaa74a6673139a6723ec8d4a1e"),
    "block": _published("era5_block.h5", "43d712754c649a27a3f19d95381b5ee346bac7806330a98e134e572174ad113d"),
}
_SARCOS = _arm("sarcos_inv.mat", "b8a249733253ba6097372fedee7696833fcf30de42037d5b4a7227f21a6d1d97")
_SARCOS_TEST = _arm("sarcos_inv_test.mat", "161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec")
_COPERNICUS, _SARCOS_PUBLISHED = _published("cm_extra.h5"), _published("sarcos.h5")
_ERSST = DataFile(
    "ersstv5_2010_2020.nc",
    "https://downloads.psl.noaa.gov/Datasets/noaa.ersst.v5/sst.mnmean.nc",
    "NOAA ERSST v5, https://psl.noaa.gov/data/gridded/data.noaa.ersst.v5.html, no constraints on use",
    "eade01e2085d841f2ff94fa6886b08a65c5018f576b066c57880726006f28ba6",
    grows=True,
)
_PROSTATE = _slide("filtered_feature_bc_matrix.h5"), _slide("spatial.tar.gz")
_DLPFC = DataFile(
    "visium_dlpfc_151673.h5ad",
    None,
    "spatialLIBD (http://research.libd.org/spatialLIBD), slice 151673, raw counts with the gene filter of PASTE2 "
    "(https://github.com/raphael-group/paste2), saved as AnnData",
    "3010b688a9d4cc3444c4a1ac42a3d97a58353cde5507ccf8bbf05b681ca715da",
)


def _known(name: str, title: str, note: str, load: Callable[..., Problem], *files: DataFile) -> None:
    """Register a data set whose loader takes the paths of its files, and the seed."""
    register_dataset(Dataset(name, title, lambda seed: load(*map(find, files), seed), files, note))


_known("eeg", "EEG", "7 electrodes x 256 steps; the paper's own split.", lambda path, _: fields.load_eeg(path), _EEG)
_known(
    "sarcos",
    "SARCOS",
    "48,933 rows pooled as published; 4,446 of the 4,449 rows of the second file are copies of rows of the first, "
    "so held-out cells leak.",
    lambda first, second, seed: fields.load_sarcos([first, second], seed),
    *(_SARCOS, _SARCOS_TEST),
)
_known(
    "sarcos-clean",
    "SARCOS without copies",
    "The 44,484 rows of the first file only, which holds no copies.",
    lambda path, seed: fields.load_sarcos([path], seed),
    _SARCOS,
)
_known(
    "sarcos-published",
    "SARCOS, the authors' split",
    "The pooled rows of `sarcos` with the split that the paper's numbers are of.",
    lambda path, _: fields.load_sarcos_published(path),
    _SARCOS_PUBLISHED,
)
for _split, _title in (("random", "ERA5 (random)"), ("block", "ERA5 (block-wise)")):
    _note = "3,395 places x 30 months; the paper's own split."
    _known(f"era5-{_split}", _title, _note, lambda path, _: fields.load_era5(path), _ERA5[_split])
_known(
    "copernicus",
    "Copernicus Marine",
    "Sea water temperature, 24 months; the paper's own split into places that are learnt from and new ones.",
    lambda path, _: fields.load_copernicus(path),
    _COPERNICUS,
)
_known(
    "ersst",
    "ERSST v5, stands in for Copernicus Marine",
    "Sea surface temperature on a 2 degree grid, 24 months; half of the places are unseen.",
    fields.load_ersst,
    _ERSST,
)
_known(
    "prostate",
    "Spatial transcriptomics (prostate)",
    "Counts of 5,000 genes; a random tenth of the cells is held out.",
    counts.load_prostate,
    *_PROSTATE,
)
_known(
    "visium-dlpfc",
    "Visium cortex, 1,000 genes, stands in for prostate",
    "2,929 spots x 1,000 genes of human cortex; a random tenth of the cells is held out.",
    counts.load_visium_dlpfc,
    _DLPFC,
)
_known(
    "climate-demo",
    "Generated climate",
    "2,000 stations x 36 months of `manygp demo`; the seed makes the table and its gaps.",
    fields.load_climate_demo,
)
