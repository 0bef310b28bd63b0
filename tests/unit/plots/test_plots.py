"""Figures draw what they are given, refuse what does not fit, and leave matplotlib's state alone."""

import builtins
import importlib
import io
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from matplotlib import rcParams
from matplotlib.figure import Figure

from manygp import IndGP
from manygp.errors import DataError, ManyGPError
from manygp.plots import (
    plot_counts,
    plot_gaps,
    plot_history,
    plot_latents,
    plot_map,
    plot_pit,
    plot_reliability,
    plot_residuals,
    plot_series,
)
from manygp.training import EpochRecord, History

RNG = np.random.default_rng(0)


def rendered(figure: Figure) -> bool:
    """Rendering runs the layout, which is where a broken figure fails."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    return buffer.getbuffer().nbytes > 1000


def panels(figure: Figure) -> list[Any]:
    return [axis for axis in figure.axes if axis.get_visible() and axis.get_label() != "<colorbar>"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_series_has_one_panel_for_each_output(count: int) -> None:
    x = np.arange(6.0)
    mean = RNG.standard_normal((6, count))
    figure = plot_series(x[:, None], mean, (mean - 1, mean + 1), observed=mean + 0.1, names=list("abcdefg")[:count])
    assert [axis.get_title(loc="left") for axis in panels(figure)] == list("abcdefg")[:count]
    assert rendered(figure)


def test_series_names_everything_it_draws() -> None:
    mean = RNG.standard_normal(5)
    figure = plot_series(np.arange(5), mean, (mean, mean), observed=mean, held_out=mean, truth=mean, level=0.5)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["50% interval", "predicted mean", "truth", "observed", "held out"]


def test_series_draws_unsorted_inputs_in_order() -> None:
    x = np.array([2.0, 0.0, 1.0])
    line = panels(plot_series(x, x * 10))[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), [0, 1, 2])
    np.testing.assert_array_equal(line.get_ydata(), [0, 10, 20])


@pytest.mark.parametrize("kind", [pd.DatetimeIndex, pd.Series, lambda days: days.to_numpy()[:, None]])
def test_series_over_dates_have_dates_along_the_axis(kind: Any) -> None:
    days = pd.date_range("2021-03-01", periods=6)
    figure = plot_series(kind(days), np.arange(6.0), (np.arange(6.0), np.arange(6.0) + 1), observed=np.arange(6.0))
    (axis,) = panels(figure)
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), days.to_numpy())
    assert rendered(figure)
    assert "2021-Mar" in axis.xaxis.get_offset_text().get_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x": list("abcd")}, "x holds text"),
        ({"mean": np.zeros((4, 0))}, "nothing to draw"),
        ({"x": np.zeros((4, 2))}, "one input"),
        ({"mean": np.zeros(3)}, "4 rows"),
        ({"names": ["a", "b"]}, "2 names"),
        ({"observed": np.zeros(9)}, "observed"),
        ({"interval": (np.zeros((4, 2)), np.zeros((4, 2)))}, "interval"),
    ],
)
def test_series_refuses_what_does_not_fit(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        plot_series(**{"x": np.arange(4), "mean": np.zeros(4), **arguments})


@pytest.mark.parametrize(("num_values", "num_spreads"), [(1, 0), (3, 1), (0, 1), (5, 2)])
def test_map_panels_share_their_scale(num_values: int, num_spreads: int) -> None:
    east, north = RNG.uniform(0, 20, 30), RNG.uniform(40, 60, 30)
    values = {f"value {i}": RNG.normal(i, 1, 30) for i in range(num_values)}
    spreads = {f"spread {i}": RNG.uniform(0, 1, 30) for i in range(num_spreads)}
    figure = plot_map(east, north, values, uncertainty=spreads, unit="°C", title="July")
    assert rendered(figure)
    drawn = panels(figure)
    assert [axis.get_title(loc="left") for axis in drawn] == [*values, *spreads]
    scales = {axis.collections[-1].get_clim() for axis in drawn[:num_values]}
    assert len(scales) == min(num_values, 1)
    bars = [axis for axis in figure.axes if axis.get_label() == "<colorbar>"]
    assert len(bars) == (num_values > 0) + (num_spreads > 0)


def test_map_shows_missing_places_as_rings() -> None:
    values = np.array([1.0, np.nan, 3.0])
    rings, dots = panels(plot_map([0, 1, 2], [50, 51, 52], {"data": values}))[0].collections
    assert len(rings.get_offsets()) == 1
    assert len(dots.get_offsets()) == 2
    assert rendered(plot_map([0, 1, 2], [50, 51, 52], {"nothing": np.full(3, np.nan)}))


def test_map_refuses_what_does_not_fit() -> None:
    with pytest.raises(DataError, match="No panel"):
        plot_map([0], [0], {})
    with pytest.raises(DataError, match="'t' has shape"):
        plot_map([0, 1], [0, 1], {"t": [1.0, 2.0, 3.0]})
    with pytest.raises(DataError, match="latitude"):
        plot_map([0, 1], [0], {"t": [1.0, 2.0]})
    with pytest.raises(DataError, match="latitude holds values that are not finite"):
        plot_map([0, 1], [0, np.nan], {"t": [1.0, 2.0]})
    with pytest.raises(DataError, match="'t' holds text"):
        plot_map([0, 1], [0, 1], {"t": ["a", "b"]})
    with pytest.raises(DataError, match="nothing to draw"):
        plot_map([], [], {"t": []})


def test_a_grid_with_holes_is_filled_cells():
    east, north = (part.ravel() for part in np.meshgrid(np.arange(6) / 10, 50 + np.arange(8) / 5))
    land = (np.arange(48) % 5 < 3) & (np.abs(north - 50.8) > 0.01)
    axis = plot_map(east[land], north[land], {"t": north[land]}).axes[0]
    (mesh,) = axis.collections
    assert type(mesh).__name__ == "QuadMesh"
    field = mesh.get_array()
    assert field.shape == (8, 6)
    assert field.count() == land.sum()
    assert field.mask[4].all()


def test_what_is_missing_in_one_panel_is_white_and_what_is_missing_in_all_is_grey():
    east, north = (part.ravel() for part in np.meshgrid(np.arange(6.0), np.arange(8.0)))
    filled = np.where(east < 2, np.nan, north)  # land
    seen = np.where(north > 5, np.nan, filled)  # clouds
    first, second = panels(plot_map(east, north, {"seen": seen, "filled": filled}))
    clouds, _ = first.collections
    assert clouds.get_array().count() == 2 * 4
    assert clouds.get_cmap()(0.5) == (1.0, 1.0, 1.0, 1.0)
    assert len(second.collections) == 1
    assert first.get_facecolor() == second.get_facecolor() != clouds.get_cmap()(0.5)


def test_models_have_a_row_each_of_value_error_and_uncertainty():
    east, north = (part.ravel() for part in np.meshgrid(np.arange(3.0), np.arange(4.0)))
    values = {"truth": east, "a": east + 1, "b": east}
    errors, spreads = {"a": east * 0 + 1, "b": east * 0}, {"a": east + 2}
    figure = plot_map(east, north, values, error=errors, uncertainty=spreads, unit="K")
    maps = [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]
    assert len(maps) == 9
    titles = [axis.get_title(loc="left") if axis.get_visible() else None for axis in maps]
    assert titles == ["truth", None, None, "a", "a", "a", "b", "b", None]
    assert rendered(figure)


def test_latents_are_drawn_along_their_principal_axes() -> None:
    latents = RNG.standard_normal((40, 3)) * [0.1, 5.0, 1.0]
    figure = plot_latents(latents, {"latitude": np.arange(40), "altitude": np.arange(40)}, title="stations")
    drawn = panels(figure)
    assert len(drawn) == 2
    plane = drawn[0].collections[0].get_offsets()
    centred = latents - latents.mean(axis=0)
    assert plane[:, 0].var() > 10 * plane[:, 1].var()
    assert abs(np.corrcoef(plane[:, 0], centred[:, 1])[0, 1]) > 0.99
    assert rendered(figure)


@pytest.mark.parametrize("latents", [np.zeros((4, 2)), np.arange(4.0), np.arange(4.0)[:, None], np.ones((1, 3))])
def test_latents_of_little_spread_still_draw(latents: np.ndarray) -> None:
    assert rendered(plot_latents(latents))


def test_latents_must_be_finite() -> None:
    with pytest.raises(DataError, match="not finite"):
        plot_latents(np.array([[np.nan, 1.0]]))
    with pytest.raises(DataError, match="nothing to draw"):
        plot_latents([])


@pytest.mark.parametrize("epochs", [1, 30])
def test_history_shows_bound_and_terms(epochs: int) -> None:
    records = [EpochRecord(i, -10.0 / i, -9.0 / i, 1.0, 2.0, 0.1, 0.1, 1.0) for i in range(1, epochs + 1)]
    figure = plot_history(History(records, "epochs"))
    assert len(panels(figure)) == 4
    assert rendered(figure)


def test_history_must_hold_an_epoch() -> None:
    with pytest.raises(DataError, match="empty"):
        plot_history(History())


def test_global_style_stays_as_it_was() -> None:
    before = dict(rcParams)
    plot_latents(RNG.standard_normal((5, 2)))
    assert dict(rcParams) == before


def test_missing_matplotlib_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_matplotlib(name: str, *arguments: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *arguments)

    for name in [name for name in sys.modules if name.startswith("manygp.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(ManyGPError, match=r"manygp\[plots\]"):
        importlib.import_module("manygp.plots")


def test_counts_have_a_bar_of_zeros_and_lose_none() -> None:
    values = np.r_[np.zeros(70), RNG.poisson(30.0, 29) + 1, 1_200.0, np.nan]
    figure = plot_counts(values, label="counts of a gene")
    (axis,) = panels(figure)
    heights = [patch.get_height() for patch in axis.patches]
    assert heights[0] == 70
    assert sum(heights) == 100
    assert "zeros: 70.0%" in [text.get_text() for text in axis.get_legend().get_texts()]
    assert rendered(figure)
    for values in ([-1.0], [1.0, np.inf], [np.nan]):
        with pytest.raises(DataError, match="below zero"):
            plot_counts(values)


def test_places_that_are_not_on_the_globe() -> None:
    x, y = RNG.uniform(0, 200, 30), RNG.uniform(0, 200, 30)
    figure = plot_map(x, y, {"gene": x}, axis_labels=("x, µm", "y, µm"))
    (axis,) = panels(figure)
    assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_aspect()) == ("x, µm", "y, µm", 1.0)
    assert rendered(figure)


@pytest.fixture(scope="module")
def predicted() -> Any:
    """A prediction over dates, and values with gaps."""
    days = pd.date_range("2024-01-01", periods=30, name="day")
    frame = pd.DataFrame(
        np.sin(np.arange(30)[:, None] / 4 + np.arange(3)) + 0.1 * RNG.normal(size=(30, 3)), days, list("abc")
    )
    frame.iloc[5:9, 1] = np.nan
    return IndGP(progress=False).fit(frame).predict_dist(), frame


def test_a_prediction_is_drawn_as_it_is(predicted: Any) -> None:
    dist, frame = predicted
    figure = plot_series(dist, observed=frame.to_numpy())
    assert [axis.get_title(loc="left") for axis in panels(figure)] == ["a", "b", "c"]
    assert figure.get_supxlabel() == "day"
    assert rendered(figure)
    with pytest.raises(DataError, match="without means"):
        plot_series(np.arange(3.0))


def test_checks_draw_on_axes_of_the_caller(predicted: Any) -> None:
    dist, frame = predicted
    figure = Figure(figsize=(12, 6))
    axes = figure.subplots(2, 2).ravel()
    for function, axis in zip((plot_reliability, plot_pit, plot_residuals), axes, strict=False):
        assert function(dist, frame, ax=axis) is axis
    assert plot_gaps(frame, ax=axes[3]) is axes[3]
    assert axes[3].get_title(loc="left") + axes[3].get_title() == "4% of 90 cells are missing"
    assert rendered(figure)
    bars = [bar.get_height() for bar in axes[1].patches]
    assert sum(bars) == pytest.approx(1.0)
    alone = plot_reliability(dist, frame, label="mine")
    assert rendered(alone.figure)
    curve = alone.lines[1].get_ydata()
    assert curve[17] == pytest.approx(dist.score(frame)["coverage90"], abs=0.02)
    with pytest.raises(DataError, match="no value to draw"):
        plot_pit(dist, frame * np.nan)


def test_a_dataset_is_a_map_of_filled_cells() -> None:
    xarray = pytest.importorskip("xarray")
    values = RNG.normal(size=(2, 3, 4))
    values[:, 0, 0] = np.nan
    dims = {"time": [0, 1], "lat": [50.0, 49.0, 48.0], "lon": [1.0, 2.0, 3.0, 4.0]}
    mean = xarray.DataArray(values, dims, list(dims), attrs={"units": "K"})
    dataset = xarray.Dataset({"mean": mean, "std": abs(mean), "lower": mean, "upper": mean})
    figure = plot_map(dataset.isel(time=0), error={"error": values[0].reshape(-1)})
    assert len(panels(figure)) == 3
    drawn = [axis.collections[0] for axis in panels(figure)]
    assert all(type(mesh).__name__ == "QuadMesh" for mesh in drawn)
    assert drawn[0].get_array().count() == 11
    assert rendered(figure)
    low, high = drawn[1].get_clim()
    assert low == -high
    with pytest.raises(DataError, match=r"time, lat, lon; choose one input, such as .isel\(time=0\)"):
        plot_map(dataset)


def test_coastlines_are_drawn_where_cartopy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    line = types.SimpleNamespace(xy=([-180.0, 180.0], [0.0, 1.0]))
    feature = types.SimpleNamespace(COASTLINE=types.SimpleNamespace(geometries=lambda: [line]))
    monkeypatch.setitem(sys.modules, "cartopy", types.SimpleNamespace(feature=feature))
    monkeypatch.setitem(sys.modules, "cartopy.feature", feature)
    axis = plot_map([1.0, 2.0], [3.0, 4.0], {"a": [1.0, 2.0]}).axes[0]
    assert len(axis.lines) == 1
    assert axis.get_xlim()[1] < 5


def test_groups_and_outputs_have_names_on_the_latent_map() -> None:
    names = list("abcdef")
    figure = plot_latents(RNG.normal(size=(6, 2)), {"region": ["north", "south"] * 3}, names=names)
    (axis,) = panels(figure)
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["north", "south"]
    assert [text.get_text() for text in axis.texts] == names
    with pytest.raises(DataError, match="20 names; give one of ten for each"):
        plot_latents(RNG.normal(size=(20, 2)), {"region": [str(i) for i in range(20)]})


def test_notebooks_show_predictions_and_histories(predicted: Any) -> None:
    dist, _ = predicted
    shown = dist._repr_html_()
    assert f"{dist.mean[0, 0]:.4g} ± {dist.std[0, 0]:.2g}" in shown
    assert "2024-01-01" in shown
    record = EpochRecord(1, -5.0, -4.0, 0.5, 0.5, 0.01, 0.1, 0.2)
    assert "<polyline" in History([record, record], "epochs")._repr_html_()
    assert "no epoch" in History()._repr_html_()
