"""Data sets as data: a name, its files, and a loader that returns a table and its split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from manygp.errors import SettingError
from manygp.paper import counts, fields
from manygp.paper.files import DataFile, find
from manygp.paper.problem import Problem

__all__ = ["DATASETS", "Dataset", "find_dataset", "register_dataset"]


@dataclass(frozen=True)
class Dataset:
    """A data set by name.

    Parameters
    ----------
    name, title
        For the command line and for people.
    load
        From a seed to a problem; the seed chooses the split, unless the source fixes it.
    files
        What the loader reads; none if it makes its data.
    note
        What a reader should know of the data or the split.
    """

    name: str
    title: str
    load: Callable[[int], Problem]
    files: Sequence[DataFile] = ()
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

_EEG = DataFile("eeg.h5", f"{_RAW}/eeg.h5", _TERMS, "b485d753d44e773fd4fb7445d840a3d1b76283b2be7d82f46c2b8c2ae0595c06")
_ERA5 = {
    "random": DataFile(
        "era5_random.h5",
        f"{_RAW}/era5_random.h5",
        _TERMS,
        "a15674d2dc4740e88555e0e9ba5ab4510380aacaa74a6673139a6723ec8d4a1e",
    ),
    "block": DataFile(
        "era5_block.h5",
        f"{_RAW}/era5_block.h5",
        _TERMS,
        "43d712754c649a27a3f19d95381b5ee346bac7806330a98e134e572174ad113d",
    ),
}
_SARCOS = DataFile(
    "sarcos_inv.mat",
    f"{_ARM}/sarcos_inv.mat",
    "https://gaussianprocess.org/gpml/data",
    "b8a249733253ba6097372fedee7696833fcf30de42037d5b4a7227f21a6d1d97",
)
_SARCOS_TEST = DataFile(
    "sarcos_inv_test.mat",
    f"{_ARM}/sarcos_inv_test.mat",
    "https://gaussianprocess.org/gpml/data",
    "161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec",
)
_COPERNICUS = DataFile("cm_extra.h5", f"{_RAW}/cm_extra.h5", _TERMS)
_SARCOS_PUBLISHED = DataFile("sarcos.h5", f"{_RAW}/sarcos.h5", _TERMS)
_ERSST = DataFile(
    "ersstv5_2010_2020.nc",
    "https://downloads.psl.noaa.gov/Datasets/noaa.ersst.v5/sst.mnmean.nc",
    "NOAA ERSST v5, https://psl.noaa.gov/data/gridded/data.noaa.ersst.v5.html, no constraints on use",
    "eade01e2085d841f2ff94fa6886b08a65c5018f576b066c57880726006f28ba6",
    grows=True,
)
_PROSTATE = (
    DataFile(
        "Visium_FFPE_Human_Prostate_Cancer_filtered_feature_bc_matrix.h5",
        f"{_SLIDE}/Visium_FFPE_Human_Prostate_Cancer_filtered_feature_bc_matrix.h5",
        "10x Genomics, Visium FFPE human prostate cancer, CC BY 4.0",
    ),
    DataFile(
        "Visium_FFPE_Human_Prostate_Cancer_spatial.tar.gz",
        f"{_SLIDE}/Visium_FFPE_Human_Prostate_Cancer_spatial.tar.gz",
        "10x Genomics, Visium FFPE human prostate cancer, CC BY 4.0",
    ),
)
_DLPFC = DataFile(
    "visium_dlpfc_151673.h5ad",
    None,
    "spatialLIBD (http://research.libd.org/spatialLIBD), slice 151673, raw counts with the gene filter of PASTE2 "
    "(https://github.com/raphael-group/paste2), saved as AnnData",
    "3010b688a9d4cc3444c4a1ac42a3d97a58353cde5507ccf8bbf05b681ca715da",
)

register_dataset(
    Dataset(
        "eeg",
        "EEG",
        lambda seed: fields.load_eeg(find(_EEG)),
        [_EEG],
        "7 electrodes x 256 steps; the paper's own split.",
    )
)
register_dataset(
    Dataset(
        "sarcos",
        "SARCOS",
        lambda seed: fields.load_sarcos([find(_SARCOS), find(_SARCOS_TEST)], seed),
        [_SARCOS, _SARCOS_TEST],
        "48,933 rows pooled as published; 4,446 of the 4,449 rows of the second file are copies of rows of the first, "
        "so held-out cells leak.",
    )
)
register_dataset(
    Dataset(
        "sarcos-clean",
        "SARCOS without copies",
        lambda seed: fields.load_sarcos([find(_SARCOS)], seed),
        [_SARCOS],
        "The 44,484 rows of the first file only, which holds no copies.",
    )
)
register_dataset(
    Dataset(
        "sarcos-published",
        "SARCOS, the authors' split",
        lambda seed: fields.load_sarcos_published(find(_SARCOS_PUBLISHED)),
        [_SARCOS_PUBLISHED],
        "The pooled rows of `sarcos` with the split that the paper's numbers are of.",
    )
)
for _split, _title in (("random", "ERA5 (random)"), ("block", "ERA5 (block-wise)")):
    register_dataset(
        Dataset(
            f"era5-{_split}",
            _title,
            lambda seed, file=_ERA5[_split]: fields.load_era5(find(file)),  # type: ignore[misc]
            [_ERA5[_split]],
            "3,395 places x 30 months; the paper's own split.",
        )
    )
register_dataset(
    Dataset(
        "copernicus",
        "Copernicus Marine",
        lambda seed: fields.load_copernicus(find(_COPERNICUS)),
        [_COPERNICUS],
        "Sea water temperature, 24 months; the paper's own split into places that are learnt from and new ones.",
    )
)
register_dataset(
    Dataset(
        "ersst",
        "ERSST v5, stands in for Copernicus Marine",
        lambda seed: fields.load_ersst(find(_ERSST), seed),
        [_ERSST],
        "Sea surface temperature on a 2 degree grid, 24 months; half of the places are unseen.",
    )
)
register_dataset(
    Dataset(
        "prostate",
        "Spatial transcriptomics (prostate)",
        lambda seed: counts.load_prostate(find(_PROSTATE[0]), find(_PROSTATE[1]), seed),
        _PROSTATE,
        "Counts of 5,000 genes; a random tenth of the cells is held out.",
    )
)
register_dataset(
    Dataset(
        "visium-dlpfc",
        "Visium cortex, 1,000 genes, stands in for prostate",
        lambda seed: counts.load_visium_dlpfc(find(_DLPFC), seed),
        [_DLPFC],
        "2,929 spots x 1,000 genes of human cortex; a random tenth of the cells is held out.",
    )
)
register_dataset(
    Dataset(
        "climate-demo",
        "Generated climate",
        fields.load_climate_demo,
        (),
        "2,000 stations x 36 months of `manygp demo`; the seed makes the table and its gaps.",
    )
)
