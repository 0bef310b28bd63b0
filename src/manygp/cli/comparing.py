"""`manygp compare`: methods side by side on a table of the user's own."""

from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from manygp.comparison import Comparison
from manygp.data import Table
from manygp.data.files import write_frame
from manygp.estimators import Estimator
from manygp.report import write_report

_HEADINGS = {"rmse": "RMSE", "nll": "NLL", "crps": "CRPS", "coverage90": "90% coverage", "seconds": "seconds"}


def print_comparison(found: Comparison) -> None:
    """Print the scores of all methods, and what to use."""
    table = RichTable(
        title=f"{found.num_cells:,} cells held out, in units of each output's spread", title_justify="left"
    )
    table.add_column("method")
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right")
    for name, row in found.scores.iterrows():
        shown = [_figure(key, row[key]) for key in _HEADINGS]
        style = "bold" if name == found.recommended else None
        table.add_row(f"{name} ({row['note']})" if row["note"] else str(name), *shown, style=style)
    console = Console()
    console.print(table)
    console.print(found.reason, highlight=False, soft_wrap=True)


def _figure(key: str, value: float) -> str:
    if value != value:
        return "–"
    return f"{value:.0%}" if key == "coverage90" else f"{value:.1f}" if key == "seconds" else f"{value:.4f}"


def write_comparison(folder: Path, found: Comparison, table: Table, source: str) -> list[Path]:
    """Write the scores to a folder, and where a model was fitted to everything, that model and a report."""
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(folder / "scores.csv", found.scores.reset_index())
    written = [folder / "scores.csv"]
    model = found.fitted if isinstance(found.fitted, Estimator) else None
    if model is not None:
        model.save(folder / "model")
        written.append(folder / "model")
    written.append(write_report(model, folder / "report.html", table=table, comparison=found, source=source))
    return written
