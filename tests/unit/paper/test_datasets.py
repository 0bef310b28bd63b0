"""Data sets: their shapes and splits, their files, and what is said when these are missing."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from manygp.errors import DataError, SettingError
from manygp.paper import DATASETS, find_dataset
from manygp.paper.counts import load_prostate, most_variable
from manygp.paper.fields import load_copernicus, load_sarcos_published
from manygp.paper.files import DataFile, checksum, download, find, place, state
from manygp.paper.problem import values_of

# Inputs, input columns, outputs, cells to learn from and to predict.
SHAPES = {
    "eeg": (256, 1, 7, 1_492, 300),
    "sarcos": (48_933, 21, 7, 171_266, 171_265),
    "sarcos-clean": (44_484, 21, 7, 155_694, 155_694),
    "era5-random": (30, 1, 3_395, 71_850, 30_000),
    "era5-block": (30, 1, 3_395, 71_850, 30_000),
    "ersst": (24, 1, 5_494, 131_856, 131_856),
    "visium-dlpfc": (2_929, 2, 1_000, 2_636_100, 292_900),
    "climate-demo": (36, 1, 2_000, 50_400, 21_600),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_dataset_is_as_published(name: str) -> None:
    dataset = DATASETS[name]
    if any(place(file) is None for file in dataset.files):
        pytest.skip(
            f"{name} needs {', '.join(file.name for file in dataset.files)} in the folder that MANYGP_DATA names"
        )
    problem = dataset.load(0)
    train, test = problem.train, problem.test
    assert (*train.X.shape, train.num_outputs, train.num_observed, test.num_observed) == SHAPES[name]
    if not problem.has_new_outputs:
        assert not (~np.isnan(values_of(train)) & ~np.isnan(values_of(test))).any()
    for part in (train, test):
        assert problem.is_counts or name == "climate-demo" or abs(np.nanmean(values_of(part))) < 0.5


def test_a_seed_chooses_the_split() -> None:
    masks = [DATASETS["climate-demo"].load(seed).train.mask for seed in (0, 1)]
    assert (masks[0] != masks[1]).any()


def test_every_dataset_of_the_paper_and_its_stand_ins_are_there() -> None:
    assert set(DATASETS) >= {*SHAPES, "copernicus", "prostate", "sarcos-published"}
    with pytest.raises(SettingError, match="choose one of: eeg"):
        find_dataset("egg")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No folder of data, and an empty cache."""
    monkeypatch.delenv("MANYGP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_files_are_found_in_order_and_checked(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = nowhere / "source.bin"
    source.write_bytes(b"some data")
    file = DataFile("some.bin", source.as_uri(), "a test", checksum(source))
    assert state(file) == "absent"
    seen: list[int] = []
    path = download(file, lambda arrived, total: seen.append(arrived))
    assert path == nowhere / "cache" / "manygp" / "some.bin"
    assert seen == [9]
    assert state(file) == "whole"
    assert find(file) == path
    path.write_bytes(b"other")
    assert state(file) == "damaged"
    assert state(DataFile("some.bin", None, "a test", file.sha256, grows=True)) == "another version"
    assert state(DataFile("some.bin", None, "a test")) == "unchecked"
    own = nowhere / "own"
    own.mkdir()
    (own / "some.bin").write_bytes(b"some data")
    monkeypatch.setenv("MANYGP_DATA", str(own))
    assert find(file) == own / "some.bin"
    assert state(file) == "whole"


def test_a_wrong_download_is_thrown_away(nowhere: Path) -> None:
    source = nowhere / "source.bin"
    source.write_bytes(b"some data")
    with pytest.raises(DataError, match="checksum"):
        download(DataFile("some.bin", source.as_uri(), "a test", "0" * 64))
    assert not list((nowhere / "cache" / "manygp").iterdir())


def test_offline_says_which_file_to_put_where(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = (nowhere / "absent").as_uri()
    with pytest.raises(DataError, match=r"put it as some\.bin into .*cache/manygp \(or a folder .* MANYGP_DATA\)"):
        find(DataFile("some.bin", absent, "a test"))
    monkeypatch.setenv("MANYGP_DATA", str(nowhere))
    with pytest.raises(DataError, match=r"another\.h5ad cannot be downloaded without an account; put it as"):
        find(DataFile("another.h5ad", None, "a test"))


def _write(path: Path, **arrays: np.ndarray) -> Path:
    """An HDF5 file in the layout of the authors' repository."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name.replace("__", "/")] = values
    return path


def _halves(rng: np.random.Generator, n: int, p: int) -> dict[str, np.ndarray]:
    mask = rng.random((n, p)) < 0.5
    values = rng.normal(size=(n, p))
    parts = {"train__train": mask, "test__test": ~mask}
    return {
        f"{name}_{what}": np.where(part, values, 0.0) if what == "Y" else part
        for name, part in parts.items()
        for what in ("Y", "mask")
    }


def test_copernicus_has_places_of_known_and_of_new_outputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"all_X": np.linspace(-1, 1, 24)[:, None]}
    for part, size in (("train", 11), ("test", 7)):
        arrays[f"{part}__{part}_Y"] = rng.normal(size=(24, size))
        arrays[f"{part}__{part}_mask"] = np.ones((24, size), dtype=bool)
        arrays[f"cm_oe_spatial_coords__{part}_sc"] = rng.normal(size=(size, 2))
    problem = load_copernicus(_write(tmp_path / "sea.h5", **arrays))
    assert problem.train.Y.shape == (24, 11)
    assert problem.test.Y.shape == (24, 7)
    assert problem.has_new_outputs
    assert not set(problem.train.output_names) & set(problem.test.output_names)
    assert problem.coordinates is not None
    assert problem.new_coordinates is not None
    np.testing.assert_array_equal(problem.coordinates, arrays["cm_oe_spatial_coords__train_sc"])
    np.testing.assert_array_equal(problem.new_coordinates, arrays["cm_oe_spatial_coords__test_sc"])
    assert (problem.unit, problem.center, problem.scale) == ("standard deviations", 0.0, 1.0)
    told = arrays | {"stats__mean": np.array(11.0), "stats__std": np.array([3.0])}
    problem = load_copernicus(_write(tmp_path / "told.h5", **told))
    assert (problem.unit, problem.center, problem.scale) == ("°C", 11.0, 3.0)
    wrong = {"cm_oe_spatial_coords__train_sc": arrays["cm_oe_spatial_coords__test_sc"]}
    path = _write(tmp_path / "wrong.h5", **arrays | wrong)
    with pytest.raises(DataError, match=r"coordinates of shape \(7, 2\) for 11 outputs"):
        load_copernicus(path)


def test_the_published_split_of_the_arm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"all_X": rng.normal(size=(30, 21)), **_halves(rng, 30, 7)}
    problem = load_sarcos_published(_write(tmp_path / "sarcos.h5", **arrays))
    assert problem.train.X.shape == (30, 21)
    assert problem.train.output_names[0] == "torque 1"
    assert problem.train.num_observed + problem.test.num_observed == 210
    np.testing.assert_array_equal(~np.isnan(values_of(problem.train)), arrays["train__train_mask"])


def test_the_checksum_of_the_first_copy_holds_from_then_on(nowhere: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = nowhere / "source.bin"
    source.write_bytes(b"some data")
    file = DataFile("some.bin", source.as_uri(), "a test")
    path = find(file)
    assert f"holds from now on: {checksum(source)}" in caplog.text
    assert state(file) == "whole"
    caplog.clear()
    assert find(file) == path
    assert not caplog.records
    path.write_bytes(b"other")
    assert state(file) == "damaged"


def test_prostate_is_filtered_as_published(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    counts = rng.poisson(60.0, (40, 50))
    counts[0] = 1  # too few counts
    counts[1] *= 20  # too many
    counts[2, :5] += 5_000  # too many of them mitochondrial
    counts[:, 10] = 0
    counts[5, 10] = 3  # a gene seen in one spot
    counts[3:, 20] = rng.poisson(60.0, 37) * (1 + np.arange(37) % 2 * 10)  # the most variable gene
    genes = [*(f"MT-{i}" for i in range(5)), *(f"G{i}" for i in range(5, 50))]
    barcodes = [f"spot{i}" for i in range(40)]
    from scipy import sparse

    columns = sparse.csr_matrix(counts)
    with h5py.File(tmp_path / "matrix.h5", "w") as file:
        group = file.create_group("matrix")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(columns, name)
        group["shape"] = np.array([50, 40])
        group["barcodes"] = [name.encode() for name in barcodes]
        group["features/name"] = [name.encode() for name in genes]
    lines = "".join(f"{name},1,{i},{i},{10 * i},{-i}\n" for i, name in reversed(list(enumerate(barcodes))))
    with tarfile.open(tmp_path / "spatial.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("spatial/tissue_positions_list.csv")
        entry.size = len(lines)
        archive.addfile(entry, io.BytesIO(lines.encode()))
    problem = load_prostate(tmp_path / "matrix.h5", tmp_path / "spatial.tar.gz", 0, num_genes=30)
    assert problem.train.Y.shape == (37, 30)
    assert "G10" not in problem.train.output_names
    assert "G20" in problem.train.output_names
    assert problem.test.num_observed == round(0.1 * 37 * 30)
    row = problem.train.Y[0, problem.train.output_names.index("G20")]
    assert row == counts[3, 20]
    assert np.all(np.diff(problem.train.X[:, 0]) > 0)


def test_the_most_variable_genes_are_those_of_the_seurat_flavour() -> None:
    """Against the recipe as scanpy documents it, gene by gene, on log-normalised counts that are taken back."""
    from scipy import sparse

    rng = np.random.default_rng(0)
    rate = rng.gamma(0.6, 4.0, 200) * rng.gamma(3.0, 1 / 3, (120, 1))
    rate[:, ::7] *= np.where(np.arange(120) < 40, 0.2, 3.0)[:, None]
    counts = rng.poisson(rate)
    counts[:, 5] = 0  # a gene that is nowhere is not variable
    totals = counts.sum(axis=1)
    logs = np.log1p(counts / totals[:, None] * np.median(totals))
    mean, variance = np.expm1(logs).mean(axis=0), np.expm1(logs).var(axis=0, ddof=1)
    place = np.log1p(mean)
    edges = np.linspace(place.min(), place.max(), 21)
    scores = {}
    for gene in np.flatnonzero(variance):
        bin_of = np.clip(np.searchsorted(edges, place, side="left"), 1, 20)
        alike = [other for other in np.flatnonzero(variance) if bin_of[other] == bin_of[gene]]
        values = np.log(variance[alike] / mean[alike])
        own = np.log(variance[gene] / mean[gene])
        scores[int(gene)] = 1.0 if len(alike) == 1 else (own - values.mean()) / values.std(ddof=1)
    best = sorted(sorted(scores, key=scores.__getitem__, reverse=True)[:25])
    assert most_variable(sparse.csr_matrix(counts), 25).tolist() == best
    assert most_variable(sparse.csr_matrix(counts), len(scores)).tolist() == sorted(scores)
