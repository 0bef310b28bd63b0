"""A stored grid is the grid in memory: the same observations, statistics and batches, read block by block."""

import anndata
import dask.array
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray
import zarr
from scipy import sparse

from manygp.data import (
    Grid,
    GridPlan,
    Scaling,
    adapters,
    as_stored,
    as_table,
    grid,
    random_split,
    read_table,
    stores,
    tiles,
)
from manygp.data.exposure import size_factors
from manygp.data.stored import StoredArray, StoredRows
from manygp.data.tiles import Side, ahead
from manygp.errors import DataError

from .test_batches import check_partition

RNG = np.random.default_rng(0)
N, P = 47, 21
X = RNG.normal(size=(N, 2))
COUNTS = RNG.poisson(0.4, size=(N, P)).astype(np.float64)
GAPPY = np.where(RNG.random((N, P)) < 0.2, np.nan, RNG.normal(size=(N, P)))
MASK = RNG.random((N, P)) < 0.7


def memory_map(folder, values):
    np.save(folder / "y.npy", values)
    return np.load(folder / "y.npy", mmap_mode="r")


def hdf5(folder, values):
    return h5py.File(folder / "y.h5", "w").create_dataset("y", data=values, chunks=(8, 6))


def zarr_array(store, values):
    array = zarr.create_array(store, shape=values.shape, chunks=(8, 6), dtype=values.dtype)
    array[:] = values
    return array


def object_store(folder, values):
    return zarr_array(zarr.storage.FsspecStore.from_url("memory://y.zarr"), values)


def dask_field(folder, values):
    field = xarray.DataArray(values.reshape(N, 3, 7), dims=("time", "lat", "lon"))
    return field.chunk({"time": 8, "lat": 1, "lon": 7})


def csr(group, values):
    matrix = sparse.csr_matrix(values)
    for name in ("data", "indices", "indptr"):
        held = getattr(matrix, name)
        if isinstance(group, h5py.Group):
            group[name] = held
        else:
            group.create_array(name, shape=held.shape, dtype=held.dtype)[:] = held
    group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", values.shape
    return group


def backed(folder, values):
    data = anndata.AnnData(sparse.csr_matrix(values), var=pd.DataFrame(index=[f"gene {i}" for i in range(P)]))
    data.obsm["spatial"] = X
    data.write_h5ad(folder / "y.h5ad")
    return anndata.read_h5ad(folder / "y.h5ad", backed="r").X


DENSE = {
    "memory map": memory_map,
    "hdf5": hdf5,
    "zarr": lambda folder, values: zarr_array(folder / "y.zarr", values),
    "object store": object_store,
    "dask": lambda folder, values: dask.array.from_array(values, chunks=(8, 6)),
    "field": dask_field,
}
SPARSE = {
    "hdf5 rows": lambda folder, values: csr(h5py.File(folder / "y.h5", "w"), values),
    "zarr rows": lambda folder, values: csr(zarr.open_group(folder / "y.zarr", mode="w"), values),
    "backed AnnData": backed,
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Tiles of a few blocks, so that a small table has many."""
    monkeypatch.setattr(tiles, "TILE_CELLS", 150)
    monkeypatch.setattr(tiles, "_TILE_ROWS", 16)


@pytest.mark.parametrize("kind", [*DENSE, *SPARSE])
def test_it_holds_the_same_cells(kind, tmp_path):
    values = COUNTS if kind in SPARSE else GAPPY
    thin, full = Grid(X, as_stored((DENSE | SPARSE)[kind](tmp_path, values))), Grid(X, values)
    assert thin.is_stored
    assert not full.is_stored
    np.testing.assert_array_equal(thin.count_per_input(), full.count_per_input())
    np.testing.assert_array_equal(thin.count_per_output(), full.count_per_output())
    np.testing.assert_allclose(thin.power_sums(2, np.arange(P)), full.power_sums(2, np.arange(P)), rtol=1e-12)
    np.testing.assert_allclose(size_factors(thin), size_factors(full), rtol=1e-12)
    np.testing.assert_array_equal(thin.values(slice(5, 30)), values[5:30])
    rows, outputs = np.array([30, 3, 9, 3]), np.array([20, 0, 7])
    np.testing.assert_array_equal(thin.block(rows, outputs), values[np.ix_(rows, outputs)])
    np.testing.assert_array_equal(
        np.unique(np.concatenate([*thin.value_chunks()])), np.unique(values[values == values])
    )
    row, output, y = thin.sample(50, np.random.default_rng(0))
    np.testing.assert_array_equal(values[row, output], y)
    assert len(y) == 50


@pytest.mark.parametrize("kind", ["zarr", "field", "memory map", "backed AnnData"])
@pytest.mark.parametrize("seed", range(2))
def test_its_batches_hold_every_cell_once(kind, seed, tmp_path, monkeypatch):
    values = COUNTS if kind in SPARSE else GAPPY
    stored = as_stored((DENSE | SPARSE)[kind](tmp_path, values))
    plan = GridPlan(Grid(X, stored), Scaling.fit(Grid(X, values), inputs=False, outputs="none"), 5, 4)
    assert len(plan) > 50
    check_partition(plan, Grid(X, values), np.random.default_rng(seed))
    for batch in plan.epoch(np.random.default_rng(seed)):
        assert len(batch.outputs) <= 4
        assert len(set(batch.row.tolist())) <= 5


def test_one_tile_gives_the_batches_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_CELLS", 10_000)
    scaling = Scaling.fit(Grid(X, GAPPY))
    plans = [GridPlan(Grid(X, values), scaling, 5, 4) for values in (GAPPY, as_stored(memory_map(tmp_path, GAPPY)))]
    for a, b in zip(*(plan.epoch(np.random.default_rng(1)) for plan in plans), strict=True):
        np.testing.assert_array_equal(a.y, b.y)
        np.testing.assert_array_equal(a.row, b.row)
        np.testing.assert_array_equal(a.outputs, b.outputs)


class Watched:
    """An array that keeps note of what is read of it."""

    def __init__(self, values, chunks):
        self.values, self.chunks, self.shape, self.dtype, self.seen = values, chunks, values.shape, values.dtype, []

    def __getitem__(self, index):
        self.seen.append(self.values[index].shape)
        return self.values[index]


def test_an_epoch_reads_every_block_once():
    array = Watched(GAPPY, (8, 6))
    table = Grid(X, StoredArray(array))
    plan = GridPlan(table, Scaling.fit(table), 5, 4)
    array.seen.clear()
    for _ in plan.epoch(np.random.default_rng(0)):
        pass
    assert sum(rows * outputs for rows, outputs in array.seen) == N * P
    assert max(rows * outputs for rows, outputs in array.seen) <= 8 * 6


@pytest.mark.parametrize(
    ("size", "block", "together", "largest"), [(47, 8, 2, 5), (8, 8, 1, 3), (9, 2, 3, 100), (5, 1, 1, 1)]
)
def test_parts_of_a_side_hold_every_number_once(size, block, together, largest):
    side = Side(size, block, together)
    parts = [*side.parts(np.random.default_rng(0))]
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))
    assert sum(-(-len(part) // largest) for part in parts) == side.num_batches(largest)


def test_reading_ahead_is_one_step_ahead_and_tells_of_failures():
    begun = []

    def read(item):
        begun.append(item)
        if item == 3:
            raise OSError("the disk is gone")
        return item

    found = ahead(read, range(5))
    assert next(found) == 0
    assert next(found) == 1
    assert set(begun) <= {0, 1, 2}
    assert next(found) == 2
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)


@pytest.mark.parametrize("kind", ["zarr", "field"])
def test_a_mask_is_read_with_the_values(kind, tmp_path):
    (tmp_path / "mask").mkdir()
    mask = DENSE[kind](tmp_path / "mask", MASK)
    thin, full = Grid(X, as_stored(DENSE[kind](tmp_path, GAPPY), mask)), Grid(X, GAPPY, mask=MASK)
    np.testing.assert_array_equal(thin.count_per_input(), full.count_per_input())
    every = np.arange(N), np.arange(P)
    np.testing.assert_array_equal(thin.block(*every), full.block(*every))


def test_what_is_small_is_read_and_what_is_large_stays(tmp_path, monkeypatch):
    array = DENSE["zarr"](tmp_path, GAPPY)
    assert not as_table(X, array).is_stored
    monkeypatch.setattr(adapters, "SMALL", 100)
    assert as_table(X, array).is_stored
    field = as_table(X, dask_field(tmp_path, GAPPY))
    assert field.is_stored
    assert field.output_names[8] == (1, 1)
    backed(tmp_path, COUNTS)
    genes = as_table(anndata.read_h5ad(tmp_path / "y.h5ad", backed="r"))
    assert genes.is_stored
    assert genes.output_names[3] == "gene 3"
    np.testing.assert_array_equal(genes.X, X)


def test_large_files_stay_on_disk(tmp_path, monkeypatch):
    for module in (adapters, stores):
        monkeypatch.setattr(module, "SMALL", 100)
    field = xarray.DataArray(GAPPY.reshape(N, 3, 7), dims=("time", "lat", "lon"), name="t")
    field.to_netcdf(tmp_path / "y.nc")
    field.chunk({"time": 8}).to_zarr(tmp_path / "field.zarr", consolidated=False)
    with h5py.File(tmp_path / "arrays.h5", "w") as file:
        file["x"], file["y"] = X, GAPPY
    backed(tmp_path, COUNTS)
    for name, asked in {"y.nc": {}, "field.zarr": {}, "arrays.h5": {"x": ["x"], "y": ["y"]}, "y.h5ad": {}}.items():
        table = read_table(tmp_path / name, **asked)
        assert table.is_stored
        np.testing.assert_array_equal(table.values(slice(0, N)), COUNTS if name == "y.h5ad" else GAPPY)


def test_a_part_stands_for_the_whole(monkeypatch):
    monkeypatch.setattr(grid, "_PART_CELLS", 10 * P)
    monkeypatch.setattr(grid, "_LEAST_STRETCHES", 5)
    table = Grid(X, StoredArray(Watched(GAPPY, (8, 6))))
    table.exposure = np.arange(1.0, N + 1.0)
    part = table.in_memory(np.random.default_rng(0))
    assert part.is_part
    assert part.Y.shape == (10, P)
    rows = part.exposure.astype(int) - 1
    np.testing.assert_array_equal(part.Y, GAPPY[rows])
    np.testing.assert_array_equal(part.X, X[rows])
    assert Grid(X, GAPPY).in_memory(np.random.default_rng(0)).is_part is False


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path):
    stored = as_stored(memory_map(tmp_path, GAPPY))
    with pytest.raises(DataError, match="give the mask to as_stored"):
        Grid(X, stored, mask=MASK)
    with pytest.raises(DataError, match="needs all 47 x 21 cells in memory"):
        random_split(Grid(X, stored), 0.2, np.random.default_rng(0))
    with pytest.raises(DataError, match="real numbers"):
        StoredArray(GAPPY.astype(str))
    with pytest.raises(DataError, match=r"infinity \(row 2, output 3\)"):
        as_table(X, StoredArray(np.where(np.arange(N * P).reshape(N, P) == 2 * P + 3, np.inf, GAPPY)))
    with pytest.raises(DataError, match="every value is NaN"):
        as_table(X, StoredArray(np.full((N, P), np.nan)))
    matrix = sparse.csr_array(COUNTS)
    broken = matrix.indices.copy()
    broken[3] = P
    with pytest.raises(DataError, match=f"a column {P}"):
        as_table(X, StoredRows(matrix.data, broken, matrix.indptr, P))
    with pytest.raises(DataError, match="rows do not follow each other"):
        StoredRows(matrix.data, matrix.indices, matrix.indptr[:-1], P)
    group = csr(h5py.File(tmp_path / "c.h5", "w"), COUNTS)
    group.attrs["encoding-type"] = "csc_matrix"
    with pytest.raises(DataError, match="write it as a csr_matrix"):
        as_stored(group)
    with pytest.raises(DataError, match="holds other"):
        as_stored(_group_with("other"))


def _group_with(name):
    group = zarr.create_group(zarr.storage.MemoryStore())
    group.create_array(name, shape=(1,), dtype="f8")
    return group
