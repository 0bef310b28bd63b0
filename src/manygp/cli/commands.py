"""The commands. Each reads, calls the library, and says what it did."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manygp._version import __version__
from manygp.cli.paper import data_app, paper_app
from manygp.cli.terminal import check_place, one_sentence_errors, print_results, print_table, remark

if TYPE_CHECKING:
    from manygp.data.sources import Source
    from manygp.training import History

app = typer.Typer(
    name="manygp",
    help="Gaussian processes with many outputs: from a table with gaps to calibrated predictions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(paper_app, name="paper")
app.add_typer(data_app, name="data")

Data = Annotated[Path, typer.Argument(help="CSV, Parquet, NetCDF, Zarr, h5ad, NPZ or HDF5 file.", show_default=False)]
Folder = Annotated[Path, typer.Argument(help="Folder of a fitted model.", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the model; may be repeated.", show_default=False),
]
InputNames = Annotated[
    str | None,
    typer.Option(
        "--x",
        "--input-columns",
        help="Inputs: columns, separated by commas (default: the first), the dimension of a field (time), the key of "
        "obsm (spatial), or the name of an array.",
        show_default=False,
    ),
]
ValueNames = Annotated[
    str | None,
    typer.Option(
        "--y",
        "--value-column",
        help="Values: columns, separated by commas (default: all others), the variable of a field, a layer, or the "
        "name of an array.",
        show_default=False,
    ),
]
Where = Annotated[
    str | None,
    typer.Option(help="Variable, layer, array or column that is true where a value counts.", show_default=False),
]
OutputColumn = Annotated[
    str | None, typer.Option(help="Column that names the output of each row, if the table has one cell per row.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]


def _show_version(asked: bool) -> None:
    if asked:
        print_results(f"manygp {__version__}")
        raise typer.Exit


@app.callback()
def _manygp(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
@one_sentence_errors
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for figures, tables and the model.")] = Path(
        "manygp-demo"
    ),
    stations: Annotated[int, typer.Option(min=10, help="Number of stations.")] = 2000,
    months: Annotated[int, typer.Option(min=12, help="Number of months.")] = 36,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated table.")] = 0,
    settings: Settings = None,
) -> None:
    """Fit a generated climate table with gaps, compare with simpler methods, and draw the result."""
    from manygp.cli.settings import parse_settings
    from manygp.demo import run_demo
    from manygp.estimators import ESTIMATORS

    chosen = parse_settings(ESTIMATORS["tlvmogp"], settings or [])
    if not out.is_file():
        check_place(out / "model")
    run_demo(out, num_stations=stations, num_months=months, random_state=seed, settings=chosen)


@app.command()
@one_sentence_errors
def fit(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the fitted model.", show_default=False)],
    model: Annotated[str, typer.Option("--model", "-m", help="Name of the model.")] = "tlvmogp",
    settings: Settings = None,
    x: InputNames = None,
    y: ValueNames = None,
    where: Where = None,
    output_column: OutputColumn = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Folder for checkpoints, from which the same command continues after a crash. It is "
            "removed once the model is saved.",
            show_default=False,
        ),
    ] = None,
    checkpoint_every: Annotated[str, typer.Option(help="Time between two checkpoints: 90s, 5min, 2h.")] = "5min",
    time_limit: Annotated[
        str | None, typer.Option(help="About how long the fit may take: 90s, 5min, 2h.", show_default=False)
    ] = None,
    report_to: Annotated[
        Path | None, typer.Option("--report", help="Write a report, too: an HTML or Markdown file.", show_default=False)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Fit a model to a table with gaps and save it.

    Ctrl-C ends the fit early and saves what was learnt so far; so do SIGTERM and a terminal that closes. With
    --checkpoint, the same command then goes on where it was. Processes of torchrun share the outputs out among them.
    """
    from manygp import distributed
    from manygp.cli.settings import model_class, parse_settings
    from manygp.estimators import ESTIMATORS
    from manygp.estimators.checkpoint import remove_checkpoint
    from manygp.estimators.persistence import check_target
    from manygp.training.interrupts import ending_early

    kind = model_class(model, ESTIMATORS)
    chosen = parse_settings(kind, settings or [])
    if quiet:
        chosen["progress"] = False
    check_target(out)
    for place in (out, report_to):
        if place is not None:
            check_place(place)
    table = _read(data, "train", x, y, where, output_column).table()
    # Who presses Ctrl-C twice, or closes the terminal, keeps what was learnt all the same.
    with ending_early(once=True):
        estimator = distributed.fit(
            kind(**chosen), table, checkpoint=checkpoint, checkpoint_every=checkpoint_every, time_limit=time_limit
        )
        if not distributed.is_first():
            return
        is_interrupted = estimator.history_.stop_reason == "interrupted"
        if is_interrupted:
            remark("Interrupted: what was learnt so far is kept.")
        remark(f"Fitted {kind.__name__}: {_course(estimator.history_)}.")
        estimator.save(out)
        if checkpoint is not None and not is_interrupted:
            remove_checkpoint(checkpoint)
    remark(f"Saved to {out}.")
    if report_to is not None:
        from manygp.report import write_report

        remark(f"Wrote {write_report(estimator, report_to, table=table, source=data.name)}.")


@app.command()
@one_sentence_errors
def predict(
    folder: Folder,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="CSV, Parquet, NPZ, NetCDF or Zarr file to write.", show_default=False)
    ],
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", help="File with the inputs (default: those of the fit).", show_default=False),
    ] = None,
    outputs: Annotated[
        str | None, typer.Option(help="Outputs to predict, separated by commas (default: all).", show_default=False)
    ] = None,
) -> None:
    """Predict mean, standard deviation and 90% interval of every output at given inputs.

    Processes of torchrun compute a share of the cells each.
    """
    from manygp import distributed
    from manygp.cli.reading import listed, match_inputs, write_prediction
    from manygp.data.files import read_inputs
    from manygp.data.names import match_names
    from manygp.estimators import load

    estimator = load(folder)
    X = None if inputs is None else match_inputs(estimator, read_inputs(inputs))
    asked = listed(outputs)
    names = None if asked is None else match_names(asked, estimator.output_names_)
    check_place(out)
    prediction = distributed.predict_dist(estimator, X, outputs=names)
    write_prediction(out, prediction)
    size = " x ".join(f"{n:,} {axis}" for n, axis in zip(prediction.shape, ("inputs", "outputs"), strict=False))
    remark(f"Wrote {math.prod(prediction.shape):,} predictions ({size}) to {out}.")


@app.command()
@one_sentence_errors
def fill(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, of the same kind.", show_default=False)],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Name of the model, or folder of a fitted one.")
    ] = "tlvmogp",
    settings: Settings = None,
    x: InputNames = None,
    y: ValueNames = None,
    where: Where = None,
    output_column: OutputColumn = None,
    level: Annotated[float, typer.Option(help="Probability of the intervals.")] = 0.9,
    std: Annotated[
        Path | None,
        typer.Option(help="Second file, for the standard deviations of a CSV or Parquet table.", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Fill the gaps of a table, field or AnnData; observed values stay as they are.

    Fields get variables for the standard deviation and the interval beside the filled one, an AnnData layers, tables
    with a row for each cell columns. Ctrl-C ends the fit early and fills with what was learnt so far.
    """
    from manygp.cli.filling import check_kind, fill_source, fit_source, write_filled
    from manygp.cli.settings import model_class, parse_settings
    from manygp.estimators import ESTIMATORS, load

    source = _read(data, "train", x, y, where, output_column)
    check_kind(source, out)
    for path in (out, std):
        if path is not None:
            check_place(path)
    if Path(model).is_dir():
        estimator = load(model)
    else:
        kind = model_class(model, ESTIMATORS)
        chosen = parse_settings(kind, settings or []) | ({"progress": False} if quiet else {})
        estimator = fit_source(kind(**chosen), source)
        remark(f"Fitted {kind.__name__}: {_course(estimator.history_)}.")
    found, count = fill_source(estimator, source, level)
    write_filled(out, source, found, level, std)
    remark(f"Filled {count:,} gaps and wrote {out}.")


@app.command()
@one_sentence_errors
def evaluate(
    folder: Folder,
    data: Data,
    x: InputNames = None,
    y: ValueNames = None,
    where: Where = None,
    output_column: OutputColumn = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score a model on the observed cells of a table. Works under torchrun too."""
    from manygp import distributed
    from manygp.cli.reading import score_table
    from manygp.estimators import load

    estimator = load(folder)
    scores = score_table(estimator, _read(data, "test", x, y, where, output_column).table())
    if not distributed.is_first():
        return
    if as_json:
        # JSON has no infinity.
        print_results(json.dumps({name: value if math.isfinite(value) else None for name, value in scores.items()}))
    else:
        shown = {name: value if isinstance(value, int) else f"{value:.4f}" for name, value in scores.items()}
        print_table(f"{type(estimator).__name__} on {data}", shown)


@app.command()
@one_sentence_errors
def compare(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the scores and the report.", show_default=False)],
    models: Annotated[
        str | None, typer.Option(help="Methods, separated by commas (default: eight of them).", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for all methods together.")] = 600.0,
    refit: Annotated[bool, typer.Option("--refit", help="Fit the recommended method to all data and save it.")] = False,
    x: InputNames = None,
    y: ValueNames = None,
    where: Where = None,
    output_column: OutputColumn = None,
    quiet: Quiet = False,
) -> None:
    """Compare plain methods and models on cells held out in the pattern of your gaps, and recommend one."""
    from manygp.cli.comparing import print_comparison, write_comparison
    from manygp.cli.reading import listed
    from manygp.comparison import compare as compare_methods
    from manygp.estimators.persistence import check_target

    if refit:
        check_target(out / "model")
    check_place(out / "scores.csv")
    table = _read(data, "train", x, y, where, output_column).table()
    found = compare_methods(table, models=listed(models), seconds=seconds, refit=refit, progress=not quiet)
    print_comparison(found)
    for path in write_comparison(out, found, table, data.name):
        remark(f"Wrote {path}.")


@app.command()
@one_sentence_errors
def report(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("report.html"),
    data: Annotated[
        Path | None, typer.Option(help="File with observations to show and to score the model on.", show_default=False)
    ] = None,
    kind: Annotated[str | None, typer.Option("--format", help="html or md (default: by the ending of --out).")] = None,
    x: InputNames = None,
    y: ValueNames = None,
    where: Where = None,
    output_column: OutputColumn = None,
) -> None:
    """Write one page about a model: data, choices, training, calibration, series, maps and how to reproduce it."""
    from manygp.estimators import load
    from manygp.report import write_report

    check_place(out)
    estimator = load(folder)
    table = None if data is None else _read(data, "train", x, y, where, output_column).table()
    source = "none were given" if data is None else data.name
    remark(f"Wrote {write_report(estimator, out, table=table, source=source, format=kind)}.")


@app.command()
@one_sentence_errors
def info(folder: Folder) -> None:
    """Show what is in a model folder."""
    from manygp.cli.reading import some
    from manygp.estimators import load

    estimator = load(folder)
    features = getattr(estimator, "feature_names_in_", ())
    rows: dict[str, Any] = {
        "model": type(estimator).__name__,
        "inputs": f"{estimator.n_features_in_} ({some(list(features)) or 'unnamed'})",
        "outputs": f"{estimator.n_outputs_:,} ({some(estimator.output_names_)})",
    }
    print_table(str(folder), rows)
    print_results(estimator.summary())


def _course(history: "History") -> str:
    """How a fit went, in a few words."""
    count = len(history)
    return f"{count} epoch{'' if count == 1 else 's'} in {history.seconds:.1f} s; it ended because {history.ending}"


def _read(
    data: Path, part: str, x: str | None, y: str | None, where: str | None, output_column: str | None
) -> "Source":
    """Read a file and say what was taken as what."""
    from manygp.cli.reading import describe, listed
    from manygp.data.sources import read_source

    source = read_source(data, part=part, x=listed(x), y=listed(y), where=where, output_column=output_column)
    remark(f"Read {data}: {describe(source.table())}")
    return source
