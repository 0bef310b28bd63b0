"""The demo's figures: a month on the map, stations over time, and the latent map."""

import calendar
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from manygp.data.climate import Stations
from manygp.estimators import TLVMOGP
from manygp.plots import Figure, plot_history, plot_latents, plot_map, plot_series
from manygp.prediction import Prediction

_MONTHS = calendar.month_name[1:]
_NUM_SERIES = 6


def draw(folder: Path, stations: Stations, model: TLVMOGP, prediction: Prediction) -> list[Path]:
    """Write all figures and return their paths."""
    figures = {
        "map.png": _map(stations, prediction),
        "series.png": _series(stations, model),
        "latents.png": _latents(stations, model),
        "training.png": plot_history(model.history_),
    }
    for name, figure in figures.items():
        figure.savefig(folder / name)
    return [folder / name for name in figures]


def _map(stations: Stations, prediction: Prediction) -> Figure:
    """The month with most gaps: truth, data, prediction and uncertainty."""
    month = int(np.argmax(stations.missing.sum(axis=1)))
    return plot_map(
        stations.longitude,
        stations.latitude,
        {
            "truth": stations.truth[month],
            "data (rings: missing)": stations.Y[month],
            "T-LVMOGP prediction": prediction.mean[month],
        },
        uncertainty={"uncertainty of the prediction": prediction.std[month]},
        unit="°C",
        title=f"Monthly mean temperature, {_MONTHS[month % 12]} of year {month // 12 + 1}",
    )


def _series(stations: Stations, model: TLVMOGP) -> Figure:
    """Six stations with long gaps, from south to north."""
    chosen = _with_long_gaps(stations)
    # Means of months have no values in between, where the weather of no month is known.
    prediction = model.predict_dist(stations.X, outputs=[stations.output_names[i] for i in chosen])
    held_out = np.where(stations.missing, stations.complete, np.nan)
    return plot_series(
        stations.X,
        prediction.mean,
        prediction.interval(0.9),
        data_x=stations.X,
        observed=stations.Y[:, chosen],
        held_out=held_out[:, chosen],
        names=[
            f"{stations.output_names[i]}, {stations.latitude[i]:.0f}°N, {stations.altitude[i]:.0f} m" for i in chosen
        ],
        x_label="months since the first January",
        y_label="monthly mean temperature, °C",
    )


def _latents(stations: Stations, model: TLVMOGP) -> Figure:
    """Where the model put the stations; it never saw what the colours show."""
    return plot_latents(
        model.latent_mean_,
        {
            "latitude, °N": stations.latitude,
            "longitude, °E": stations.longitude,
            "continentality (0 coast, 1 inland)": stations.continentality,
        },
        title="Latent map of stations: the model saw temperatures only, no coordinates",
    )


def _with_long_gaps(stations: Stations) -> NDArray[np.int64]:
    """The station with most gaps in each of a few bands of latitude."""
    bands = np.array_split(np.argsort(stations.latitude), min(_NUM_SERIES, len(stations.latitude)))
    gaps = stations.missing.sum(axis=0)
    return np.array([band[np.argmax(gaps[band])] for band in bands])
