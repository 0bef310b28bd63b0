"""`manygp fill`: a file goes in, a file of the same kind without gaps comes out."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from manygp.cli.commands import app

FAST = ["--set", "epochs=2", "--set", "latent_dim=2", "--set", "num_inducing=6", "--quiet"]
DAYS = pd.date_range("2024-01-01", periods=12)
VALUES = np.sin(np.arange(12.0)[:, None] / 3 + np.arange(4.0))
VALUES[4:7, 2] = np.nan
FRAME = pd.DataFrame({"day": DAYS, **dict(zip("abcd", VALUES.T, strict=True))})


def run(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables(tmp_path, suffix):
    path, out, std = (tmp_path / f"{name}.{suffix}" for name in ("data", "out", "std"))
    frame, read = FRAME.assign(note="dry"), {"csv": pd.read_csv, "parquet": pd.read_parquet}[suffix]
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    said = run("fill", path, "--out", out, "--x", "day", "--y", "a,b,c,d", "--std", std, *FAST)
    assert "Filled 3 gaps" in said
    filled, sure = read(out), read(std)
    assert list(filled.columns) == ["day", *"abcd", "note"]
    assert filled["note"].eq("dry").all()
    seen = ~np.isnan(VALUES)
    assert np.allclose(filled[list("abcd")].to_numpy()[seen], VALUES[seen])
    assert not filled.isna().any(axis=None)
    assert np.array_equal(sure[list("abcd")].to_numpy() > 0, ~seen)


def test_tables_with_a_row_for_each_cell(tmp_path):
    long = FRAME.melt("day", var_name="sensor", value_name="z").assign(good=True)
    # What is marked as bad is predicted, and not learnt from.
    long.loc[0, ["z", "good"]] = [1e6, False]
    long.to_csv(tmp_path / "data.csv", index=False)
    given = ["--x", "day", "--output-column", "sensor", "--y", "z", "--where", "good"]
    run("fill", tmp_path / "data.csv", "--out", tmp_path / "out.csv", *given, *FAST)
    filled = pd.read_csv(tmp_path / "out.csv")
    assert list(filled.columns) == ["day", "sensor", "z", "std", "lower90", "upper90"]
    assert abs(filled["z"][0]) < 100
    assert (filled["std"] > 0).sum() == 4


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_fields(tmp_path, suffix):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip({"nc": "netCDF4", "zarr": "zarr"}[suffix])
    values = VALUES.copy()
    values[:, 0] = np.nan
    field = xarray.DataArray(
        values.reshape(12, 2, 2),
        {"time": DAYS, "lat": [1.0, 2.0], "lon": [3.0, 4.0]},
        ("time", "lat", "lon"),
        name="sst",
        attrs={"units": "K"},
    )
    source = field.to_dataset().assign(depth=("lat", [1.0, 2.0]))
    path, out = tmp_path / f"data.{suffix}", tmp_path / f"out.{suffix}"
    # Time need not come first.
    turned = source.transpose("lat", "lon", "time")
    turned.to_netcdf(path) if suffix == "nc" else turned.to_zarr(path, consolidated=False)
    for _ in range(2):
        run("fill", path, "--out", out, *FAST)
    filled = xarray.open_dataset(out) if suffix == "nc" else xarray.open_zarr(out, consolidated=False)
    with filled:
        assert set(filled.data_vars) == {"sst", "sst_std", "sst_lower90", "sst_upper90"}
        assert filled["sst"].attrs["units"] == "K"
        assert int(filled["sst"].isnull().sum()) == 12
        assert int((filled["sst_std"] > 0).sum()) == 3
        assert np.array_equal(filled["time"], field["time"])
    said = run("fill", path, "--y", "rain", "--out", out, code=2)
    assert "has no variable 'rain'; --y names one of" in " ".join(said.split())


def test_annotated_data_and_arrays(tmp_path):
    anndata, h5py = pytest.importorskip("anndata"), pytest.importorskip("h5py")
    places = np.column_stack([np.arange(12.0), np.arange(12.0) % 3])
    data = anndata.AnnData(VALUES.astype(np.float32))
    data.obsm["place"] = places
    data.write_h5ad(tmp_path / "data.h5ad")
    run("fill", tmp_path / "data.h5ad", "--x", "place", "--out", tmp_path / "out.h5ad", *FAST)
    filled = anndata.read_h5ad(tmp_path / "out.h5ad")
    assert not np.isnan(filled.layers["manygp_mean"]).any()
    assert (filled.layers["manygp_std"] > 0).sum() == 3
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["in"], file["out/values"], file["out/seen"] = places, np.nan_to_num(VALUES), ~np.isnan(VALUES)
    given = ["--x", "in", "--y", "out/values", "--where", "out/seen"]
    run("fill", tmp_path / "data.h5", *given, "--out", tmp_path / "out.npz", *FAST)
    with np.load(tmp_path / "out.npz") as arrays:
        assert np.array_equal(arrays["std"] > 0, np.isnan(VALUES))


def test_a_fitted_model_fills_another_file(tmp_path):
    FRAME.to_csv(tmp_path / "data.csv", index=False)
    run("fit", tmp_path / "data.csv", "--out", tmp_path / "model", *FAST)
    run("fill", tmp_path / "data.csv", "--model", tmp_path / "model", "--out", tmp_path / "out.csv")
    assert not pd.read_csv(tmp_path / "out.csv").isna().any(axis=None)
    # At the inputs of the fit, without a file of inputs; fields go to NetCDF.
    pytest.importorskip("netCDF4")
    said = run("predict", tmp_path / "model", "--out", tmp_path / "all.nc")
    assert "Wrote 48 predictions (12 inputs x 4 outputs)" in said


def test_a_file_of_another_kind_is_refused_before_the_fit(tmp_path):
    FRAME.to_csv(tmp_path / "data.csv", index=False)
    said = run("fill", tmp_path / "data.csv", "--out", tmp_path / "out.nc", code=2)
    assert "expected .csv or .parquet" in " ".join(said.split())
    assert "Fitted" not in said
    said = run("fill", tmp_path / "data.csv", "--out", tmp_path / "out.csv", "--where", "a", code=2)
    assert "leave --where out" in " ".join(said.split())
