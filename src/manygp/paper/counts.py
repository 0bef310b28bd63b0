"""Readers of the data sets of gene counts: Visium slides."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from manygp.data import Grid, random_split
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError
from manygp.extras import need
from manygp.paper.problem import Problem

_LEAST_COUNTS, _MOST_COUNTS, _MOST_MITOCHONDRIAL, _LEAST_SPOTS = 2_000, 35_000, 0.2, 10
_HELD_OUT = 0.1
_BINS = 20
# Genes of the paper's figures, and markers of layers of the cortex.
_SHOWN = ("SPP1", "IGHG2", "MIB2", "L1CAM", "MBP", "PCP4", "SNAP25", "GFAP")


def load_visium_dlpfc(path: Path, seed: int, num_genes: int = 1_000) -> Problem:
    """Counts of the most variable genes of a slice of human cortex; a random tenth of the cells is held out."""
    h5py = need("h5py", "files", "This data set")
    with h5py.File(path) as file:
        shape = (len(file["obs/_index"]), len(file["var/_index"]))
        parts = [file[f"X/{name}"][()] for name in ("data", "indices", "indptr")]
        places = np.asarray(file["obsm/spatial"], dtype=np.float64)
        genes = [name.decode() for name in file["var/_index"][()]]
    return _problem(sparse.csr_matrix(tuple(parts), shape=shape), places, genes, num_genes, seed)


def load_prostate(matrix: Path, spatial: Path, seed: int, num_genes: int = 5_000) -> Problem:
    """Counts of a slide of prostate cancer, filtered as in the paper; a random tenth of the cells is held out.

    Spots with 2,000 to 35,000 counts, less than 20% of them mitochondrial; genes seen in at least 10 of these; of them
    the most variable.
    """
    counts, barcodes, genes = _read_10x(matrix)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    mitochondrial = np.array([name.upper().startswith("MT-") for name in genes])
    share = np.asarray(counts[:, mitochondrial].sum(axis=1)).ravel() / np.maximum(totals, 1)
    spots = (totals >= _LEAST_COUNTS) & (totals <= _MOST_COUNTS) & (share < _MOST_MITOCHONDRIAL)
    counts = counts[spots]
    seen = counts.getnnz(axis=0) >= _LEAST_SPOTS
    positions = _read_positions(spatial)
    places = positions.loc[np.asarray(barcodes)[spots], ["row", "column"]].to_numpy(dtype=np.float64)
    return _problem(counts[:, seen], places, list(np.asarray(genes)[seen]), num_genes, seed)


def most_variable(counts: Any, number: int) -> IntArray:
    """The most variable genes as scanpy's "seurat" flavour has them, in the order of the table.

    Of counts at equal totals for all spots, log(variance / mean), standardised among the genes of a similar mean: those
    of one of twenty bins of log(1 + mean). scanpy goes there by log-normalised counts, which it takes back.
    """
    totals = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    factor = sparse.diags(np.median(totals[totals > 0]) / np.maximum(totals, 1.0))
    normalised = sparse.csc_matrix(factor @ counts.astype(np.float64))
    mean = np.asarray(normalised.mean(axis=0)).ravel()
    square = np.asarray(normalised.multiply(normalised).mean(axis=0)).ravel()
    variance = (square - mean**2) * len(totals) / (len(totals) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        dispersion = pd.Series(np.where(variance > 0, np.log(variance / mean), np.nan))
    groups = dispersion.groupby(pd.cut(np.log1p(mean), bins=_BINS), observed=True)
    center, spread = groups.transform("mean"), groups.transform("std")
    # A gene alone in its bin counts as one standard deviation above the rest.
    alone = spread.isna() & dispersion.notna()
    score = ((dispersion - center) / spread).where(~alone, 1.0).fillna(-np.inf).to_numpy()
    return np.sort(np.argsort(-score, kind="stable")[:number])


def _problem(counts: Any, places: FloatArray, genes: list[str], num_genes: int, seed: int) -> Problem:
    chosen = most_variable(counts, num_genes)
    Y = np.asarray(counts[:, chosen].todense(), dtype=np.float64)
    X = (places - places.mean(axis=0)) / places.std(axis=0)
    names = _distinct([genes[i] for i in chosen])
    train, test = random_split(Grid(X, Y, names), _HELD_OUT, np.random.default_rng(seed))
    assert isinstance(train, Grid)
    assert isinstance(test, Grid)
    shown = tuple(gene for gene in _SHOWN if gene in names)
    return Problem(train, test, unit="counts", input_label="position on the slide", is_counts=True, shown=shown)


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Names with a number where a gene's symbol occurs again."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return tuple(result)


def _read_10x(path: Path) -> tuple[Any, list[str], list[str]]:
    """Counts (spots, genes), barcodes of the spots and symbols of the genes, from 10x Genomics' HDF5 layout."""
    h5py = need("h5py", "files", "This data set")
    try:
        with h5py.File(path) as file:
            group = file["matrix"]
            parts = tuple(group[name][()] for name in ("data", "indices", "indptr"))
            shape = tuple(int(size) for size in group["shape"][()])
            barcodes = [name.decode() for name in group["barcodes"][()]]
            genes = [name.decode() for name in group["features/name"][()]]
    except (OSError, KeyError) as error:
        raise DataError(f"{path} is no filtered feature matrix of 10x Genomics; download it again.") from error
    # The file stores genes x spots by columns, which is spots x genes by rows.
    return sparse.csr_matrix(parts, shape=shape[::-1]), barcodes, genes


def _read_positions(path: Path) -> pd.DataFrame:
    """Pixel positions of the spots by barcode, from the archive of 10x Genomics."""
    with tarfile.open(path) as archive:
        names = [name for name in archive.getnames() if Path(name).name.startswith("tissue_positions")]
        stream = archive.extractfile(names[0]) if names else None
        if stream is None:
            raise DataError(f"{path} holds no tissue_positions file; download the spatial archive of the slide again.")
        content = stream.read()
    columns = ["barcode", "in_tissue", "array_row", "array_column", "row", "column"]
    header = 0 if content.startswith(b"barcode") else None
    frame = pd.read_csv(io.BytesIO(content), header=header, names=columns)
    return frame.set_index("barcode")
