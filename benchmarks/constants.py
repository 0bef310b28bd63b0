"""Numbers that steer: what each does, halved and doubled, on generated tables.

`python -m benchmarks.constants` writes `docs/constants.md`: every module-level number of `models` and `initialise` with
the comment above it. `--run initialise.tlvmogp._MIN_INDUCING ... [--seeds 5]` (or `--run all`) fits T-LVMOGP to four
small tables with the number as it is, halved and doubled, and notes by how many nats a held-out cell becomes less
likely. Every fit is a line that is appended to `benchmarks/constants.jsonl`; what is there already is not run again
unless the number has another value now, so that a run may stop and go on. Whatever a function takes as the default of
a parameter is fixed when the module is imported, and changing the number then shows nothing.
"""

import argparse
import ast
import importlib
import json
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from benchmarks.kinds import KINDS, Kind, make_table

ROOT = Path(__file__).parents[1]
ROOMS = ("models", "initialise")
PAGE = ROOT / "docs" / "constants.md"
RECORDS = Path(os.environ.get("MANYGP_CONSTANTS", ROOT / "benchmarks" / "constants.jsonl"))
WAYS = {"halved": 0.5, "doubled": 2.0}
_EPOCHS = 30
_INTRODUCTION = """# Constants

Numbers in `models` and `initialise` that steer results or cost, as `python -m benchmarks.constants` finds them: every
module-level number with the comment that stands above it. The last columns tell what halving and doubling does to
T-LVMOGP: by how many nats held-out cells become *less* likely, mean over fits to four generated tables (independent
outputs; repeated inputs; stretches lost in a third of the outputs, with neighbours; counts) with its standard error,
and over how many fits. A table where no function is called that speaks of the number is left out. "Same" are
fits that were equal to the last digit. An empty field has not been measured. A number that no table tells from nothing
should go.

"""


# Numbers of a tuple that the page shows.
_SHOWN = 9


@dataclass(frozen=True)
class Constant:
    """A module-level number, or a tuple of them, with what its comment says."""

    module: str
    name: str
    value: Any
    meaning: str

    @property
    def key(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"

    @property
    def is_number(self) -> bool:
        """Whether it can be halved and doubled."""
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)

    @property
    def shown(self) -> str:
        """The value, of which a long tuple shows its first numbers and its last."""
        if not isinstance(self.value, tuple) or len(self.value) <= _SHOWN:
            return str(self.value)
        return f"({', '.join(f'{each:.4g}' for each in self.value[: _SHOWN - 1])}, ..., {self.value[-1]:.4g})"

    def times(self, factor: float) -> Any:
        """A multiple, of the same kind."""
        return type(self.value)(max(round(self.value * factor), 1)) if type(self.value) is int else self.value * factor


def constants() -> Iterator[Constant]:
    """All steering numbers of the rooms, in the order of the sources."""
    for room in ROOMS:
        for path in sorted((ROOT / "src" / "manygp" / room).glob("*.py")):
            text = path.read_text(encoding="utf-8")
            module, lines = f"{room}.{path.stem}", text.splitlines()
            for node in ast.parse(text).body:
                names = [name for name in _assigned(node) if name.strip("_").replace("_", "").isupper()]
                meaning = _comment(lines, node.lineno)
                values = importlib.import_module(f"manygp.{module}").__dict__
                for name in names:
                    if _is_numeric(values[name]):
                        yield Constant(module, name, values[name], meaning)


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _comment(lines: list[str], line: int) -> str:
    """The comment that ends in the line before this one."""
    found: list[str] = []
    while line > 1 and lines[line - 2].startswith("#"):
        found.insert(0, lines[line - 2].lstrip("# "))
        line -= 1
    return " ".join(found)


def _is_numeric(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(kind: Kind, seed: int) -> tuple[Any, ...]:
    return *make_table(kind, np.random.default_rng(seed)), {}


def _stretches(seed: int) -> tuple[Any, ...]:
    """A fifth of the cells lost, and a tenth of the rows in a third of the outputs."""
    rng = np.random.default_rng(seed)
    X, Y, _ = make_table(Kind(110, 16, 1, 0.1, 0.0), rng)
    order, lost = np.argsort(X[:, 0]), rng.random(Y.shape) < 0.2
    for j in rng.permutation(16)[:5]:
        first = rng.integers(10, 89)
        lost[order[first : first + 11], j] = True
    return X, np.where(lost, np.nan, Y), np.where(lost, Y, np.nan), {}


def _counts(seed: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    X, Y, _ = make_table(Kind(60, 12, 1, 0.05, 0.0), rng)
    counts, lost = rng.poisson(np.exp(1.0 + Y)).astype(float), rng.random(Y.shape) < 0.25
    return X, np.where(lost, np.nan, counts), np.where(lost, counts, np.nan), {"likelihood": "poisson"}


TABLES: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "own functions": lambda seed: _kind(KINDS["own functions"], seed),
    "duplicated inputs": lambda seed: _kind(KINDS["duplicated inputs"], seed),
    "stretches": _stretches,
    "counts": _counts,
}


def loss(table: str, seed: int) -> float:
    """Negative log density of the held-out cells of a table."""
    import manygp

    X, Y, held_out, settings = TABLES[table](seed)
    model = manygp.TLVMOGP(random_state=seed, epochs=_EPOCHS, progress=False, **settings).fit(X, Y)
    return float(model.evaluate(X, held_out)["nll"])


def asked(table: str, seed: int) -> set[tuple[str, str]]:
    """Modules and names that functions speak of which a fit to a table calls: no other number can matter to it."""
    codes = dict[Any, str]()

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            codes[frame.f_code] = frame.f_globals.get("__name__", "")

    sys.setprofile(see)
    try:
        loss(table, seed)
    finally:
        sys.setprofile(None)
    return {(module, name) for code, module in codes.items() for name in code.co_names}


def records() -> list[dict[str, Any]]:
    """All fits so far, the last one where there are several of the same."""
    lines = RECORDS.read_text(encoding="utf-8").splitlines() if RECORDS.exists() else []
    found = map(json.loads, lines)
    return list({(each["constant"], each["way"], each["table"], each["seed"]): each for each in found}.values())


def run(chosen: list[Constant], seeds: int) -> None:
    """Fit to every table with numbers as they are, halved and doubled, one seed after the other."""
    known = {(each["constant"], each["way"], each["table"], each["seed"], each["value"]) for each in records()}

    def note(constant: str, way: str, table: str, seed: int, value: Any) -> None:
        if (constant, way, table, seed, value) in known:
            return
        try:
            nll = loss(table, seed)
        except (ArithmeticError, ValueError, RuntimeError) as error:
            print(f"{constant} {way} {table} {seed}: {error}", file=sys.stderr)
            nll = np.nan
        record = {"constant": constant, "way": way, "table": table, "seed": seed, "value": value, "nll": nll}
        with RECORDS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    speak = {table: asked(table, 0) for table in TABLES}
    for seed in range(seeds):
        for table in TABLES:
            note("", "usual", table, seed, None)
        for constant in chosen:
            module = importlib.import_module(f"manygp.{constant.module}")
            tables = [table for table in TABLES if (module.__name__, constant.name) in speak[table]]
            for way, factor in WAYS.items():
                setattr(module, constant.name, constant.times(factor))
                for table in tables:
                    note(constant.key, way, table, seed, constant.value)
                setattr(module, constant.name, constant.value)


@cache
def _losses() -> dict[tuple[str, Any, str], list[float]]:
    """What the fits of a constant lost against those with all numbers as they are."""
    found, losses = records(), defaultdict[tuple[str, Any, str], list[float]](list)
    usual = {(each["table"], each["seed"]): each["nll"] for each in found if not each["constant"]}
    for each in found:
        if each["constant"]:
            loss = each["nll"] - usual[each["table"], each["seed"]]
            losses[each["constant"], each["value"], each["way"]].append(loss)
    return losses


def measured(constant: Constant) -> list[str]:
    """Three fields of the page: halved, doubled, and over how many fits."""
    losses = [_losses().get((constant.key, constant.value, way), []) if constant.is_number else [] for way in WAYS]
    if not all(losses):
        return ["", "", ""]
    shown = []
    for each in losses:
        error = f" ± {np.std(each, ddof=1) / np.sqrt(len(each)):.3f}" if len(each) > 1 else ""
        shown.append(f"{np.mean(each):+.3f}{error}" if np.any(each) else "same")
    return [*shown, str(len(losses[0]))]


def page() -> str:
    """The page, a table for each module."""
    text, module = [_INTRODUCTION.rstrip("\n")], ""
    for constant in constants():
        if constant.module != module:
            module = constant.module
            heading = "| constant | value | steers | halved | doubled | fits |"
            text += ["", f"## {module}", "", heading, "|---|---|---|---|---|---|"]
        meaning = constant.meaning.replace("|", "\\|")
        cells = [f"`{constant.name}`", f"`{constant.shown}`", meaning, *measured(constant)]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main() -> None:
    """Run what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", nargs="+", default=[], help="constants to halve and double, or 'all'")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = list(constants())
    wanted = [c for c in found if c.is_number and (c.key in arguments.run or arguments.run == ["all"])]
    if wanted:
        run(wanted, arguments.seeds)
    PAGE.write_text(page(), encoding="utf-8")
    print(json.dumps({"benchmark": "constants", "run": len(wanted), "listed": len(found)}))


if __name__ == "__main__":
    main()
