"""Numbers that steer: what each does, halved and doubled, on generated tables.

`python -m benchmarks.constants` writes `docs/constants.md`: every module-level number of `models` and `initialise` with
the comment above it. `--run initialise.tlvmogp._MIN_INDUCING ... [--seeds 5] [--case "tiny" ...]` fits T-LVMOGP to
tables of `benchmarks.kinds` with the number as it is, halved and doubled, and notes by how many nats a held-out cell
becomes less likely; what has been run is kept in `benchmarks/constants.json`. Whatever a function takes as the default
of a parameter is fixed when the module is imported, and changing the number then shows nothing.
"""

import argparse
import ast
import importlib
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kinds import KINDS, QUICK, make_table

ROOT = Path(__file__).parents[1]
ROOMS = ("models", "initialise")
PAGE, RESULTS = ROOT / "docs" / "constants.md", ROOT / "benchmarks" / "constants.json"
_EPOCHS = 40
_INTRODUCTION = """# Constants

Numbers in `models` and `initialise` that steer results or cost, as `python -m benchmarks.constants` finds them: every
module-level number with the comment that stands above it. The last columns tell what halving and doubling does to
T-LVMOGP: by how many nats held-out cells become *less* likely, mean over generated tables of `benchmarks.kinds`, with
the tables and seeds that were run. An empty field has not been measured. A number that no table tells from nothing
should go.

"""


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


def loss(kinds: list[str], seeds: int) -> float:
    """Mean negative log density of held-out cells of some tables."""
    import manygp

    each = []
    for kind in kinds:
        for seed in range(seeds):
            X, Y, held_out = make_table(KINDS[kind], np.random.default_rng(seed))
            model = manygp.TLVMOGP(random_state=seed, epochs=_EPOCHS, progress=False).fit(X, Y)
            each.append(model.evaluate(X, held_out)["nll"])
    return float(np.mean(each))


def measure(constant: Constant, kinds: list[str], seeds: int, usual: float) -> dict[str, Any]:
    """What halving and doubling a number costs, in nats a held-out cell."""
    module, result = importlib.import_module(f"manygp.{constant.module}"), {"kinds": kinds, "seeds": seeds}
    for way, factor in (("halved", 0.5), ("doubled", 2.0)):
        setattr(module, constant.name, constant.times(factor))
        try:
            result[way] = loss(kinds, seeds) - usual
        finally:
            setattr(module, constant.name, constant.value)
    return result


def page(results: dict[str, Any]) -> str:
    """The page, a table for each module."""
    text, module = [_INTRODUCTION.rstrip("\n")], ""
    for constant in constants():
        if constant.module != module:
            module = constant.module
            text += [
                "",
                f"## {module}",
                "",
                "| constant | value | steers | halved | doubled | measured on |",
                "|---|---|---|---|---|---|",
            ]
        found = results.get(constant.key)
        measured = ["", "", ""]
        if found is not None:
            measured = [f"{found[way]:+.3f}" for way in ("halved", "doubled")]
            measured.append(f"{', '.join(found['kinds'])}; {found['seeds']} seed{'s' * (found['seeds'] > 1)}")
        cells = [f"`{constant.name}`", f"`{constant.value}`", constant.meaning.replace("|", "\\|"), *measured]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main() -> None:
    """Run what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", nargs="+", default=[], help="constants to halve and double, or 'all'")
    parser.add_argument("--case", nargs="+", choices=list(KINDS), default=list(QUICK))
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    chosen = [c for c in constants() if c.is_number and (c.key in arguments.run or arguments.run == ["all"])]
    usual = loss(arguments.case, arguments.seeds) if chosen else 0.0
    for constant in chosen:
        results[constant.key] = measure(constant, arguments.case, arguments.seeds, usual)
        print(json.dumps({constant.key: results[constant.key]}), file=sys.stderr, flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")
    print(json.dumps({"benchmark": "constants", "run": len(chosen), "listed": sum(1 for _ in constants())}))


if __name__ == "__main__":
    main()
