"""Command lines and tables of the attack: files of all kinds under all options, and tables that nobody would make."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from manygp.cli.commands import app
from manygp.estimators import ESTIMATORS

__all__ = ["check_answer", "check_line", "command_lines", "strange_tables"]

_CSV = "day,a,b,c\n" + "\n".join(f"{i},{np.sin(i):.3f},{np.cos(i):.3f},{i % 3}" for i in range(12)) + "\n"
# Names of files and what is in them.
_FILES: dict[str, bytes] = {
    "good.csv": _CSV.encode(),
    "long.csv": b"day,sensor,reading\n" + b"".join(b"%d,%s,%d.5\n" % (i, b"abc"[i % 3 :][:1], i) for i in range(15)),
    "empty.csv": b"",
    "header.csv": b"day,a,b\n",
    "one.csv": b"day,a\n1,2\n",
    "bare.csv": _CSV.partition("\n")[2].encode(),
    "text.csv": b"day,a\nmonday,red\ntuesday,blue\n",
    "holes.csv": b"day,a,b\n1,,\n2,,\n3,,\n",
    "inf.csv": b"day,a,b\n1,inf,2\n2,1e400,3\n3,1,1\n",
    "twice.csv": b"day,day,a\n1,1,2\n2,2,3\n3,3,4\n",
    "ragged.csv": b"day,a\n1,2\n2,3,4,5\n3\n",
    "huge.csv": b"day,a,b\n1e300,1e300,1\n2,1e-300,2\n3,1,3\n",
    "dates.csv": b"when,a,b\n" + b"".join(b"2020-01-%02d,%d,%d\n" % (i, i, -i) for i in range(1, 15)),
    "latin.csv": "tag,grün\n1,2\n2,3\n".encode("latin-1"),
    "nul.csv": b"day,a\n1,\x002\n2,3\n",
    "junk.npz": b"PK\x03\x04" + bytes(range(200)),
    "junk.parquet": b"PAR1" + bytes(range(200)),
    "junk.h5": b"\x89HDF\r\n\x1a\n" + bytes(range(200)),
    "junk.nc": b"CDF\x01" + bytes(range(200)),
    "junk.h5ad": b"nothing",
    "table.xlsx": b"nothing",
    "noend": _CSV.encode(),
}
_OPTIONS: dict[str, tuple[str, ...]] = {
    "--x": ("day", "none", "day,day", "", "a", "0"),
    "--y": ("a", "a,b", "reading", "day", "zz", ""),
    "--output-column": ("sensor", "day", "zz"),
    "--where": ("a", "zz"),
    "--model": ("ind-gp", "oilmm", "zz", ""),
    "--set": ("latent_dim=0", "kernel=zz", "epochs", "=3", "standardize=none", "dtype=float16"),
}
_QUICK = ["--set", "epochs=1", "--set", "num_inducing=5", "--quiet"]


def command_lines(count: int, seed: int, attempt: Callable[[str, Callable[[], None]], None]) -> None:
    """Commands on files of all kinds; each has to end with code 0, or with code 2 and one sentence."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, content in _FILES.items():
            (folder / name).write_bytes(content)
        (folder / "folder.csv").mkdir()
        np.savez(folder / "good.npz", X=np.arange(8.0)[:, None], Y=np.sin(np.arange(16.0)).reshape(8, 2))
        np.savez(folder / "flat.npz", X=np.zeros((2, 2, 2)), Y=np.zeros(3))
        _run(["fit", str(folder / "good.csv"), "--out", str(folder / "model"), "--model", "ind-gp", "--quiet"])
        # Half of the files are sound, so that some lines get far.
        files = [*_FILES, "good.npz", "flat.npz", "folder.csv", "missing.csv", "model"]
        files += ["good.csv", "long.csv", "dates.csv", "good.npz", "noend"] * 5
        for _ in range(count):
            line = _line(rng, folder, [str(folder / name) for name in files])
            attempt(" ".join(part.removeprefix(place) for part in line), lambda line=line: check_line(line))


def _line(rng: np.random.Generator, folder: Path, files: list[str]) -> list[str]:
    def pick(values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    command, data = pick(("fit", "fit", "fill", "predict", "evaluate", "report", "info")), pick(files)
    model, out = pick((str(folder / "model"), pick(files))), pick((str(folder / "out"), "/proc/none", str(folder)))
    out = pick((str(folder / "out"), out))
    if command == "info":
        return ["info", model]
    if command == "report":
        return ["report", model, *pick(([], ["--data", data])), "--out", pick((str(folder / "r.md"), out))]
    if command == "predict":
        return ["predict", model, *pick(([], ["--inputs", data])), "--out", pick((str(folder / "p.csv"), out))]
    if command == "evaluate":
        return ["evaluate", model, data, *pick(([], ["--json"]))]
    options = [part for name, values in _OPTIONS.items() if rng.random() < 0.3 for part in (name, pick(values))]
    where = out if command == "fit" else pick((str(folder / f"f{Path(data).suffix}"), out))
    return [command, data, "--out", where, *options, *_QUICK]


def _run(line: list[str]) -> Any:
    return CliRunner().invoke(app, line)


def check_line(line: list[str]) -> None:
    """Refuse a command that ends otherwise than with code 0, or 2 and one sentence."""
    result = _run(line)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    errors = [text for text in result.stderr.splitlines() if text.startswith("Error:")]
    # What typer refuses by itself comes in a box, and tells of a line that this file should not have made.
    if "No such option" in result.stderr:
        raise AssertionError(result.stderr[-200:])
    if result.exit_code not in (0, 2) or (result.exit_code == 2 and len(errors) > 1):
        raise AssertionError(f"exit code {result.exit_code}, {result.stderr[-80:]!r}")
    if line[0] == "evaluate" and "--json" in line and result.exit_code == 0:
        json.loads(result.stdout, parse_constant=_refuse)


def _refuse(text: str) -> float:
    raise AssertionError(f"{text} is no JSON")


def strange_tables(
    count: int, seed: int, small: Callable[..., Any], attempt: Callable[[str, Callable[[], None]], None]
) -> None:
    """Tables made of odd parts, each fitted by some estimator, which `small` makes."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        attempt(*_table(rng, small))


def _table(rng: np.random.Generator, small: Callable[..., Any]) -> tuple[str, Callable[[], None]]:
    n, p, d = (int(rng.integers(low, high)) for low, high in ((1, 25), (1, 6), (1, 4)))
    X, Y = rng.standard_normal((n, d)), rng.standard_normal((n, p))
    words = [f"{n} x {p} x {d}"]

    def chance(word: str) -> bool:
        happens = bool(rng.random() < 0.25)
        words.extend([word] * happens)
        return happens

    if chance("same inputs"):
        X[:] = X[:1]
    if chance("pairs of inputs"):
        X[n // 2 :] = X[: n - n // 2]
    if chance("constant input"):
        X[:, -1] = 3.0
    if chance("huge inputs"):
        X *= 10.0 ** rng.uniform(3, 100)
    if chance("constant output"):
        Y[:, 0] = rng.choice([0.0, 7.0, 1e6, 1e-12])
    if chance("same outputs"):
        Y[:] = Y[:, :1]
    if chance("units"):
        Y *= 10.0 ** rng.uniform(-100, 100, p)
    if chance("far level"):
        Y += 10.0 ** rng.uniform(2, 12)
    if chance("one outlier"):
        Y[rng.integers(n), rng.integers(p)] = 10.0 ** rng.uniform(2, 30)
    if chance("whole numbers"):
        Y = np.round(np.clip(Y, -1e15, 1e15))
    if chance("gaps"):
        Y[rng.random(Y.shape) < 0.5] = np.nan
    if chance("lost output"):
        Y[:, -1] = np.nan
    name = list(ESTIMATORS)[int(rng.integers(len(ESTIMATORS)))]
    return f"{name}, {', '.join(words)}", lambda: check_answer(small(name), X, Y)


def check_answer(model: Any, X: np.ndarray, Y: np.ndarray) -> None:
    """Fit and predict: what is finite, in the range of the data or near it, with positive standard deviations."""
    mean, std = model.fit(X, Y).predict(X, return_std=True)
    if not (np.isfinite(mean).all() and np.isfinite(std).all()):
        raise ArithmeticError("an answer that is not finite")
    if (std < 0).any():
        raise ArithmeticError("a negative standard deviation")
    reach = np.nanmax(np.abs(Y))
    if (np.abs(mean) > 1e3 * reach + 1e3).any():
        raise ArithmeticError(f"a mean of {np.abs(mean).max():.3g} where values reach {reach:.3g}")
