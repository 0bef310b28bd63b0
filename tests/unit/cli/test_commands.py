"""The commands as a user meets them: results, remarks, one sentence and exit code 2 on bad input."""

import builtins
import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import manygp
from manygp.cli import terminal
from manygp.cli.commands import app
from manygp.training import progress
from manygp.training.interrupts import ending_early

QUICK = ["--set", "epochs=2", "--set", "latent_dim=2", "--set", "num_inducing=8", "--quiet"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def wide_frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    day = np.linspace(0.0, 6.0, 12)
    frame = pd.DataFrame(
        np.sin(day[:, None] + [0.0, 0.3, 0.6]) + 0.1 * rng.standard_normal((12, 3)), columns=list("abc")
    )
    frame.iloc[2:5, 1] = np.nan
    frame.insert(0, "day", day)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data in every layout and a model fitted to them."""
    path = tmp_path_factory.mktemp("cli")
    wide = wide_frame()
    wide.to_csv(path / "wide.csv", index=False)
    wide.melt("day", var_name="sensor", value_name="reading").dropna().to_csv(path / "long.csv", index=False)
    np.savez(path / "arrays.npz", X=wide[["day"]].to_numpy(), Y=wide[list("abc")].to_numpy())
    pd.DataFrame({"remark": ["x", "y"], "day": [0.5, 1.5]}).to_csv(path / "new.csv", index=False)
    assert run("fit", path / "wide.csv", "--out", path / "model", *QUICK).exit_code == 0
    return path


def fails(result: Result, *words: str) -> None:
    """Exit code 2, nothing on standard output, and one sentence that says what is wrong."""
    assert result.exit_code == 2, result.stderr
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if not line.startswith(("Read ", "Note: "))]
    assert len(errors) == 1
    assert errors[0].startswith("Error: ")
    for word in words:
        assert word in errors[0]


def test_fit_says_what_it_took_as_what(folder: Path) -> None:
    result = run("fit", folder / "wide.csv", "--out", folder / "again", *QUICK)
    assert result.exit_code == 0
    assert "12 rows, input day, 3 outputs (a, b, c), 33 observed cells of 36 (8% missing)" in result.stderr
    assert "Fitted TLVMOGP: 2 epochs" in result.stderr
    assert f"Saved to {folder / 'again'}" in result.stderr
    assert manygp.load(folder / "again").output_names_ == ("a", "b", "c")


def test_layouts_lead_to_the_same_model(folder: Path) -> None:
    long = run(
        *("fit", folder / "long.csv", "--out", folder / "long"),
        *("--output-column", "sensor", "--value-column", "reading", *QUICK),
    )
    assert long.exit_code == 0, long.stderr
    model = manygp.load(folder / "long")
    assert model.output_names_ == ("a", "b", "c")
    assert list(model.feature_names_in_) == ["day"]
    two = run("fit", folder / "wide.csv", "--out", folder / "two", "--input-columns", "day,a", *QUICK)
    assert two.exit_code == 0, two.stderr
    assert manygp.load(folder / "two").n_features_in_ == 2


def test_predict_writes_means_and_intervals(folder: Path) -> None:
    out = folder / "predictions.csv"
    result = run("predict", folder / "model", "--inputs", folder / "new.csv", "--out", out)
    assert result.exit_code == 0, result.stderr
    frame = pd.read_csv(out)
    assert list(frame.columns) == ["day", "output", "mean", "std", "lower90", "upper90"]
    assert list(frame["output"]) == list("abc") * 2
    model = manygp.load(folder / "model")
    expected = model.predict(pd.DataFrame({"day": [0.5, 1.5]}))
    np.testing.assert_allclose(frame["mean"], np.asarray(expected).reshape(-1), rtol=1e-12)
    assert (frame["lower90"] < frame["mean"]).all()
    assert (frame["mean"] < frame["upper90"]).all()


def test_predict_only_some_outputs_and_inputs_without_names(folder: Path) -> None:
    out = folder / "some.npz"
    result = run("predict", folder / "model", "--inputs", folder / "arrays.npz", "--out", out, "--outputs", "c,a")
    assert result.exit_code == 0, result.stderr
    with np.load(out) as arrays:
        assert list(arrays["output"][:2]) == ["c", "a"]
        assert len(arrays["mean"]) == 24


def test_dates_go_in_and_come_out(folder: Path) -> None:
    days = pd.date_range("2020-01-01", periods=12)
    wide_frame().assign(day=days).to_csv(folder / "dated.csv", index=False)
    pd.DataFrame({"day": ["2020-02-01", "2020-02-02"]}).to_csv(folder / "next.csv", index=False)
    assert run("fit", folder / "dated.csv", "--out", folder / "dated", *QUICK).exit_code == 0
    result = run("predict", folder / "dated", "--inputs", folder / "next.csv", "--out", folder / "dated_out.csv")
    assert result.exit_code == 0, result.stderr
    frame = pd.read_csv(folder / "dated_out.csv")
    assert list(frame["day"]) == ["2020-02-01"] * 3 + ["2020-02-02"] * 3
    expected = manygp.load(folder / "dated").predict(pd.DataFrame({"day": pd.date_range("2020-02-01", periods=2)}))
    np.testing.assert_allclose(frame["mean"], np.asarray(expected).reshape(-1), rtol=1e-12)


def test_evaluate_is_the_same_in_both_layouts(folder: Path) -> None:
    wide = run("evaluate", folder / "model", folder / "wide.csv", "--json")
    cells = ("--output-column", "sensor", "--value-column", "reading")
    long = run("evaluate", folder / "model", folder / "long.csv", *cells, "--json")
    scores = json.loads(wide.stdout)
    assert scores["num_cells"] == 33
    assert scores == pytest.approx(json.loads(long.stdout))
    assert "coverage90" in run("evaluate", folder / "model", folder / "wide.csv").stdout


def test_outputs_are_matched_by_name_not_by_place(folder: Path) -> None:
    wide_frame()[["day", "c", "a", "b"]].to_csv(folder / "shuffled.csv", index=False)
    scores = [
        json.loads(run("evaluate", folder / "model", folder / name, "--json").stdout)
        for name in ("wide.csv", "shuffled.csv")
    ]
    assert scores[0] == pytest.approx(scores[1])


def test_numbered_outputs_can_be_asked_for(folder: Path) -> None:
    assert run("fit", folder / "arrays.npz", "--out", folder / "numbered", *QUICK).exit_code == 0
    out = folder / "numbered.csv"
    result = run("predict", folder / "numbered", "--inputs", folder / "arrays.npz", "--out", out, "--outputs", "2")
    assert result.exit_code == 0, result.stderr
    assert set(pd.read_csv(out)["output"]) == {2}


def test_info_tells_model_sizes_and_settings(folder: Path) -> None:
    result = run("info", folder / "model")
    assert result.exit_code == 0
    for words in ("TLVMOGP", "1 (day)", "3 (a, b, c)", "2 epochs", "num_inducing"):
        assert words in result.stdout


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_keep_what_was_learnt(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    number = getattr(signal, name)
    # As on a terminal: whoever started the tests may have signals ignored.
    heard = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    before = signal.signal(number, heard)

    def interrupt(self: object, epoch: int, total: int, bound_per_cell: float) -> None:
        if epoch == 3:
            signal.raise_signal(number)

    save = manygp.TLVMOGP.save

    def impatient(self: manygp.TLVMOGP, path: Path) -> None:
        signal.raise_signal(number)
        save(self, path)

    monkeypatch.setattr(manygp.TLVMOGP, "save", impatient)
    monkeypatch.setattr(progress._Silent, "update", interrupt)
    settings = ["--set", "epochs=50", *QUICK[2:]]
    result = run("fit", folder / "wide.csv", "--out", folder / "interrupted", *settings)
    assert result.exit_code == 0
    assert "Interrupted: what was learnt so far is kept." in result.stderr
    model = manygp.load(folder / "interrupted")
    assert len(model.history_) == 3
    assert model.history_.stop_reason == "interrupted"
    # What comes again while the program ends is for nobody.
    assert signal.signal(number, before) == signal.SIG_IGN


def test_signals_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with ending_early(once=True):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_a_place_that_cannot_be_written_is_known_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("The work was begun.")

    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(manygp.TLVMOGP, "_fit_table", never)
    monkeypatch.setattr(manygp.TLVMOGP, "predict_dist", never)
    monkeypatch.setattr(terminal.tempfile, "TemporaryFile", refuse)
    if command == "fit":
        fails(run("fit", folder / "wide.csv", "--out", folder / "new"), "cannot be written (Permission denied)")
    else:
        arguments = ("--inputs", folder / "wide.csv", "--out", folder / "new.csv")
        fails(run("predict", folder / "model", *arguments), "cannot be written (Permission denied)")


def test_ctrl_c_while_the_library_is_imported_ends_quietly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def interrupted(name: str, *rest: object) -> object:
        if name == "manygp.estimators":
            raise KeyboardInterrupt
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    result = run("info", folder / "model")
    assert result.exit_code == 130
    assert result.stderr == "Error: Interrupted; nothing was written.\n"


def test_scores_that_json_does_not_know_are_null(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manygp.TLVMOGP, "evaluate", lambda *_, **__: {"mse": np.inf, "nll": np.nan, "num_cells": 3})
    result = run("evaluate", folder / "model", folder / "wide.csv", "--json")
    assert json.loads(result.stdout, parse_constant=pytest.fail) == {"mse": None, "nll": None, "num_cells": 3}


def test_inputs_of_another_kind_are_refused(folder: Path) -> None:
    wide = wide_frame()
    dated = wide.assign(day=pd.date_range("2020-01-01", periods=len(wide)))
    dated.to_csv(folder / "dated.csv", index=False)
    model = folder / "model"
    says = "X holds dates, but the model was fitted with numbers"
    fails(run("evaluate", model, folder / "dated.csv"), says)
    fails(run("predict", model, "--inputs", folder / "dated.csv", "--out", folder / "none.csv"), says)
    assert run("fit", folder / "dated.csv", "--out", folder / "of_dates", *QUICK).exit_code == 0
    assert run("evaluate", folder / "of_dates", folder / "dated.csv").exit_code == 0
    says = "X holds numbers, but the model was fitted with dates"
    fails(run("evaluate", folder / "of_dates", folder / "wide.csv"), says)
    fails(run("predict", folder / "of_dates", "--inputs", folder / "wide.csv", "--out", folder / "none.csv"), says)


def test_inputs_with_gaps_are_refused(folder: Path) -> None:
    (folder / "gappy.csv").write_text("day,a\n1,2\n,3\n")
    fails(run("predict", folder / "model", "--inputs", folder / "gappy.csv", "--out", folder / "none.csv"), "NaN")


def test_kinds_go_with_their_columns(folder: Path) -> None:
    wide = wide_frame().assign(day=pd.date_range("2020-01-01", periods=12), depth=np.arange(12.0))
    for columns in (["day", "depth"], ["depth", "day"]):
        wide[[*columns, "a", "b"]].to_csv(folder / f"{columns[0]}.csv", index=False)
    both = ["--input-columns", "day,depth"]
    assert run("fit", folder / "day.csv", "--out", folder / "two", *both, *QUICK).exit_code == 0
    turned = run("evaluate", folder / "two", folder / "depth.csv", "--input-columns", "depth,day", "--json")
    assert turned.exit_code == 0, turned.stderr
    straight = run("evaluate", folder / "two", folder / "day.csv", *both, "--json")
    assert json.loads(turned.stdout) == json.loads(straight.stdout)


def test_ctrl_c_elsewhere_ends_quietly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(manygp.TLVMOGP, "_fit_table", interrupt)
    result = run("fit", folder / "wide.csv", "--out", folder / "never", *QUICK)
    assert result.exit_code == 130
    assert "nothing was written" in result.stderr
    assert not (folder / "never").exists()


@pytest.mark.filterwarnings("default")
def test_warnings_become_remarks(folder: Path) -> None:
    wide_frame().assign(d=np.nan).to_csv(folder / "empty_output.csv", index=False)
    result = run("fit", folder / "empty_output.csv", "--out", folder / "with_empty", *QUICK)
    assert result.exit_code == 0
    assert "Note: 1 of 4 outputs" in result.stderr
    assert "UserWarning" not in result.stderr


def test_bad_files_and_settings_get_one_sentence(folder: Path) -> None:
    data, model, out = folder / "wide.csv", folder / "model", folder / "none"
    fails(run("fit", folder / "absent.csv", "--out", out), "absent.csv")
    for taken in (data, folder):
        # Before the fit, not after it.
        assert "Read" not in run("fit", data, "--out", taken).stderr
        fails(run("fit", data, "--out", taken), "exists and is not a ManyGP model")
    fails(run("fit", data, "--out", data / "below"), str(data), "name a folder that you may write to")
    fails(run("fit", data, "--out", out, "--model", "mystery"), "'mystery'", "tlvmogp")
    fails(run("fit", data, "--out", out, "--set", "sise=3"), "'sise'", "num_inducing")
    fails(run("fit", data, "--out", out, "--set", "num_blocks=many"), "a whole number")
    fails(run("fit", data, "--out", out, "--set", "kernel=mystery"), "'mystery'", "rbf")
    fails(run("fit", data, "--out", out, "--input-columns", "night"), "'night'")
    fails(run("fit", data, "--out", out, "--input-columns", " , "), "no column")
    fails(run("fit", data, "--out", out, "--output-column", "a"), "name that of the values too")
    fails(run("predict", folder, "--inputs", data, "--out", out), "not a ManyGP model")
    fails(run("predict", model, "--inputs", data, "--out", folder / "p.xyz"), "'.xyz'")
    fails(run("predict", model, "--inputs", data, "--out", folder / "p.csv", "--outputs", "a,zz"), "'zz'")
    fails(run("predict", model, "--inputs", folder / "stations.csv", "--out", folder / "p.csv"), "stations.csv")
    fails(run("evaluate", model, folder / "new.csv"), "remark")
    fails(run("info", folder / "absent"), "absent")
    assert not out.exists()
    assert not (folder / "p.csv").exists()


def test_counts_are_fitted_with_a_likelihood_of_their_own(folder: Path) -> None:
    counts = wide_frame().round().clip(lower=0.0).assign(day=np.arange(12.0))
    counts.to_csv(folder / "counts.csv", index=False)
    chosen = ("--set", "likelihood=zinb")
    assert run("fit", folder / "counts.csv", "--out", folder / "zinb", *QUICK, *chosen).exit_code == 0
    scores = json.loads(run("evaluate", folder / "zinb", folder / "counts.csv", "--json").stdout)
    assert scores["crps"] > 0
    assert 0.0 < scores["nll"] < 5.0
    written = run("predict", folder / "zinb", "--inputs", folder / "new.csv", "--out", folder / "zinb.csv")
    assert written.exit_code == 0
    upper = pd.read_csv(folder / "zinb.csv")["upper90"]
    assert (upper == upper.round()).all()
    out = folder / "none"
    fails(run("fit", folder / "wide.csv", "--out", out, *QUICK, *chosen), "counts (0, 1, 2, ...)")
    fails(run("fit", folder / "counts.csv", "--out", out, "--set", "likelihood=zimb"), "'zimb'", "'zinb'")
    assert not out.exists()


def test_inputs_of_another_model_are_refused(folder: Path) -> None:
    pd.DataFrame({"hour": [1.0]}).to_csv(folder / "hours.csv", index=False)
    result = run("predict", folder / "model", "--inputs", folder / "hours.csv", "--out", folder / "p.csv")
    fails(result, "'day'", "hour")


def test_version_is_told() -> None:
    assert run("--version").stdout == f"manygp {manygp.__version__}\n"


def test_a_fit_goes_on_from_its_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise manygp.ModelFileError("There is no place.")

    command = ("fit", folder / "wide.csv", "--checkpoint", folder / "run", *QUICK)
    with monkeypatch.context() as patch:
        patch.setattr(manygp.TLVMOGP, "save", broken)
        assert run(*command, "--out", folder / "first").exit_code == 2
    assert (folder / "run" / "checkpoint.json").exists()
    fails(run(*command, "--set", "epochs=3", "--out", folder / "second"), "epochs was another")
    assert run(*command, "--out", folder / "second").exit_code == 0
    assert not (folder / "run").exists()
    assert manygp.load(folder / "second").history_.stop_reason == "epochs"
    fails(run(*command, "--checkpoint-every", "often", "--out", folder / "third"), "'often' is no duration")
