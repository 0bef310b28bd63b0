"""One run of the demo, from the generated table to the printed comparison."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as RichTable

from manygp.data import as_table
from manygp.data.climate import Stations, make_climate
from manygp.data.files import write_frame
from manygp.demo.rivals import low_rank, station_interpolation, station_mean
from manygp.errors import SettingError
from manygp.estimators import TLVMOGP
from manygp.estimators.persistence import check_target
from manygp.prediction import Prediction
from manygp.report import write_report

_MODEL = "T-LVMOGP"


def run_demo(
    folder: Path,
    *,
    num_stations: int = 2000,
    num_months: int = 36,
    random_state: int = 0,
    settings: dict[str, Any] | None = None,
) -> pd.DataFrame:
    """Fit a generated climate table, compare with simpler ways, and write everything to a folder.

    Parameters
    ----------
    folder
        Where figures, tables and the model go; made if it does not exist.
    num_stations, num_months
        Size of the table.
    random_state
        Seed of the table.
    settings
        Settings of the model that differ from its defaults.

    Returns
    -------
    pandas.DataFrame
        Scores on the missing cells, one row for each method.
    """
    # Importing here fails before the fit, not after it, if matplotlib is missing.
    from manygp.demo.figures import draw

    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; name a folder for the demo's output.")
    # So does a folder that is not the demo's to write to.
    check_target(folder / "model")
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    stations = make_climate(num_stations, num_months, random_state=random_state)
    held_out = np.where(stations.missing, stations.complete, np.nan)
    console.print(
        f"{num_stations:,} stations x {num_months} months of temperatures, {stations.missing.mean():.0%} missing; "
        "every method below fills the missing cells and is scored on them.",
        highlight=False,
    )
    rows = _rival_scores(stations, held_out)
    model = TLVMOGP(**(settings or {}))
    started = time.perf_counter()
    model.fit(pd.Index(stations.X[:, 0], name="month"), stations.Y, output_names=stations.output_names)
    seconds = time.perf_counter() - started
    if model.history_.stop_reason == "interrupted":
        console.print("Interrupted: going on with what was learnt so far.")
    prediction = model.predict_dist(stations.X)
    rows[_MODEL] = {**prediction.score(held_out), "seconds": seconds}
    scores = pd.DataFrame.from_dict(rows, orient="index")[["mse", "nll", "coverage90", "seconds"]]
    console.print(_score_table(scores))
    model.save(folder / "model")
    figures = draw(folder, stations, model, prediction)
    tables = _write_tables(folder, stations, prediction, scores)
    table = as_table(pd.Index(stations.X[:, 0], name="month"), stations.Y, output_names=stations.output_names)
    page = write_report(model, folder / "report.html", table=table, source="generated temperatures")
    for path in [*figures, *tables, page, folder / "model"]:
        console.print(f"  wrote {path}", highlight=False, soft_wrap=True)
    return scores


def _rival_scores(stations: Stations, held_out: NDArray[np.float64]) -> dict[str, dict[str, float]]:
    """Scores of the simpler ways."""
    rivals = {
        "per-station mean": lambda: station_mean(stations.Y),
        "per-station interpolation": lambda: station_interpolation(stations.X[:, 0], stations.Y),
        "low-rank matrix completion": lambda: low_rank(stations.X, stations.Y),
    }
    rows = {}
    for name, fill in rivals.items():
        started = time.perf_counter()
        filling = fill()
        rows[name] = {**filling.score(held_out), "seconds": time.perf_counter() - started}
    return rows


def _score_table(scores: pd.DataFrame) -> RichTable:
    """The comparison, with the best of each column in bold."""
    best = {
        "mse": scores["mse"].idxmin(),
        "nll": scores["nll"].idxmin(),
        "coverage90": (scores["coverage90"] - 0.9).abs().idxmin(),
    }
    table = RichTable(title="Missing cells, °C", title_justify="left")
    table.add_column("method")
    for heading in ("MSE", "NLL", "90% coverage", "seconds"):
        table.add_column(heading, justify="right")
    for name, row in scores.iterrows():
        cells = {
            "mse": f"{row['mse']:.3f}",
            "nll": f"{row['nll']:.3f}",
            "coverage90": f"{row['coverage90']:.1%}",
            "seconds": f"{row['seconds']:.1f}",
        }
        shown = [f"[bold]{text}[/]" if best.get(key) == name else text for key, text in cells.items()]
        table.add_row(str(name), *shown)
    return table


def _write_tables(folder: Path, stations: Stations, prediction: Prediction, scores: pd.DataFrame) -> list[Path]:
    """The data, where the stations are, the predictions and the scores, as CSV."""
    names = stations.output_names
    data = pd.DataFrame(stations.Y, columns=list(names))
    data.insert(0, "month", stations.X[:, 0])
    places = pd.DataFrame(
        {
            "station": names,
            "latitude": stations.latitude,
            "longitude": stations.longitude,
            "altitude": stations.altitude,
            "continentality": stations.continentality,
        }
    )
    predictions = prediction.to_frame(0.9).rename(columns={"output": "station"})
    predictions["truth"] = stations.truth.reshape(-1)
    predictions["observed"] = ~stations.missing.reshape(-1)
    frames = {
        "data.csv": data,
        "stations.csv": places,
        "predictions.csv": predictions,
        "scores.csv": scores.rename_axis("method").reset_index(),
    }
    for name, frame in frames.items():
        write_frame(folder / name, frame.round(4))
    return [folder / name for name in frames]
