"""Whether what `manygp.compare` recommends is best on cells that it did not see, on real tables.

`python -m benchmarks.compare [--table NAME ...] [--seeds 0] [--seconds 3600] [--records FILE]` holds cells out of each
table as `benchmarks.protocol` says, runs `manygp.compare` with its defaults on the rest, fits every method of the
comparison to the same rest, and scores it on the cells held out. A recommendation is good if its CRPS, over all these
cells and in units of each output's spread, is within 3% of the least. Tables are those of `benchmarks.real`.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import manygp
from benchmarks.protocol import PARTS, Problem, pose, run
from benchmarks.real import TABLES
from manygp.comparison import DEFAULT_MODELS

_AS_GOOD = 0.03


def recommended(problem: Problem, seed: int, seconds: float) -> dict[str, Any]:
    """What a comparison on the rest of a table recommends, and how all methods do on what was held out."""
    found = manygp.compare(problem.X, problem.Y, seconds=seconds, random_state=seed, progress=False)
    scores = {name: run(problem, name, {}, seed) for name in DEFAULT_MODELS}
    unseen = {name: _over_all(score, "crps") for name, score in scores.items()}
    return {
        "recommended": found.recommended,
        "compared": found.scores["crps"].round(5).to_dict(),
        "unseen": {name: round(value, 5) for name, value in unseen.items()},
        "rmse": {name: round(_over_all(score, "rmse", 2.0), 5) for name, score in scores.items()},
        "best": min(unseen, key=unseen.__getitem__),
        "ratio": round(unseen[found.recommended] / min(unseen.values()), 4),
        "pattern": found.pattern,
        "seconds": {name: score["seconds"] for name, score in scores.items()},
    }


def _over_all(score: dict[str, Any], key: str, power: float = 1.0) -> float:
    """A score over the cells of both parts."""
    cells = sum(score[part]["cells"] for part in PARTS)
    return float(sum(score[part]["cells"] * score[part][key] ** power for part in PARTS) / cells) ** (1.0 / power)


def main() -> None:
    """Print a line for each table and seed, and how many recommendations were good."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--seconds", type=float, default=3_600.0, help="time of one comparison")
    parser.add_argument("--records", type=Path, help="a JSONL file to append to")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    ratios = []
    for name in arguments.table:
        for seed in arguments.seeds:
            record = {"table": name, "seed": seed} | recommended(pose(TABLES[name], seed), seed, arguments.seconds)
            ratios.append(record["ratio"])
            words = f"{record['recommended']}, best is {record['best']}, ratio {record['ratio']:.3f}"
            print(f"{name}, seed {seed}: {words}", flush=True)
            if arguments.records is not None:
                with arguments.records.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    good = sum(ratio <= 1.0 + _AS_GOOD for ratio in ratios)
    print(f"{good} of {len(ratios)} recommendations are within {_AS_GOOD:.0%} of the best")


if __name__ == "__main__":
    main()
