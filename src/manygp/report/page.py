"""A report as one file: HTML that needs nothing else, or Markdown."""

import datetime
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from manygp.comparison import Comparison
from manygp.data import Table
from manygp.data.files import write_file
from manygp.errors import SettingError
from manygp.estimators import Estimator
from manygp.extras import need
from manygp.report.facts import collect

FORMATS = ("html", "md")


def write_report(
    model: Estimator | None,
    path: str | Path,
    *,
    table: Table | None = None,
    comparison: Comparison | None = None,
    source: str = "the table of the fit",
    format: str | None = None,
) -> Path:
    """Write a report about a fitted model, whole or not at all.

    Parameters
    ----------
    model
        A fitted estimator; None for a report of a comparison alone.
    path
        The file to write.
    table
        Observations to show beside predictions and to score the model on: those of the fit, or better, others.
    comparison
        What `manygp.compare` found on the same table.
    source
        What to call the observations.
    format
        "html" or "md"; by the ending of the file unless given.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    chosen = format or path.suffix.lower().removeprefix(".")
    if chosen not in FORMATS:
        raise SettingError(f"format={chosen!r} is unknown for a report: use {' or '.join(FORMATS)}.")
    text = render(collect(model, table, comparison, source), chosen)

    def write(to: Path) -> None:
        to.write_text(text, encoding="utf-8")

    write_file(path, write)
    return path


def render(facts: dict[str, Any], format: str) -> str:
    """Return the text of a report."""
    jinja2 = need("jinja2", "report", "A report")
    environment = jinja2.Environment(
        autoescape=format == "html", trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    folder = files("manygp.report")
    parts = {name: (folder / name).read_text(encoding="utf-8") for name in ("style.css", "report.js")}
    # What is between script tags must not end them.
    drawn = {key: facts[key] for key in ("names", "data", "training", "calibration", "comparison", "series", "maps")}
    drawn |= {key: facts[key] for key in ("latents", "correlation")}
    data = json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    template = environment.from_string((folder / f"report.{format}.jinja").read_text(encoding="utf-8"))
    text: str = template.render(
        **facts,
        style=parts["style.css"],
        script=parts["report.js"],
        drawn=data,
        today=datetime.date.today().isoformat(),
    )
    return text
