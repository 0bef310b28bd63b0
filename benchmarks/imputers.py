"""`manygp.Imputer` beside the imputers of scikit-learn, each in a pipeline, on real tables.

`python -m benchmarks.imputers [--table NAME ...] [--share 0.2] [--seed 0] [--epochs N]` hides cells at random and whole
stretches of a third of the columns, and prints errors in units of each column's spread, and how often 90% intervals
hold what was hidden, which only one of the three can say. The order of the rows, a day each, is a column that all may
use. Tables are those of `benchmarks.real`.
"""

import argparse
import time

import numpy as np
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import manygp
from benchmarks.real import city_weather, nitrogen_oxides

TABLES = {"nitrogen oxides": nitrogen_oxides, "city weather": city_weather}
_Z90 = 1.645


def hide(Y: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Cells hidden at random, and stretches of a tenth of the rows in a third of the columns."""
    scattered, lost = rng.random(Y.shape) < share, np.zeros(Y.shape, dtype=bool)
    for column in rng.choice(Y.shape[1], max(1, Y.shape[1] // 3), replace=False):
        first = int(rng.integers(0.9 * len(Y)))
        lost[first : first + len(Y) // 10, column] = True
    seen = np.isfinite(Y)
    return scattered & ~lost & seen, lost & seen


def compare(name: str, share: float, seed: int, epochs: int | None) -> None:
    """Print a line for each imputer."""
    X, Y = TABLES[name]()
    scattered, lost = hide(Y, share, np.random.default_rng(seed))
    spread = np.nanstd(Y, axis=0)
    table = np.hstack([X, np.where(scattered | lost, np.nan, Y)])
    model = manygp.TLVMOGP(progress=False, **({} if epochs is None else {"epochs": epochs}))
    imputers = {
        "KNNImputer": KNNImputer(),
        "IterativeImputer": IterativeImputer(max_iter=20, random_state=seed),
        "manygp.Imputer": manygp.Imputer(model, inputs=[0], return_std=True),
    }
    for title, imputer in imputers.items():
        begin = time.process_time()
        scaler = StandardScaler()
        filled, std = make_pipeline(scaler, imputer).fit_transform(table), None
        if isinstance(filled, tuple):
            filled, std = filled
            std = std[:, 1:] * scaler.scale_[1:]
        error = scaler.inverse_transform(filled)[:, 1:] - Y
        parts = {"scattered": scattered, "stretches": lost}
        words = [f"{word} {np.sqrt(np.mean((error / spread)[part] ** 2)):.3f}" for word, part in parts.items()]
        if std is not None:
            words += [f"90% hold {np.mean(np.abs(error) < _Z90 * std, where=part):.3f}" for part in parts.values()]
        print(f"{name} {Y.shape}, {title}: {', '.join(words)}; {time.process_time() - begin:.0f} s of CPU", flush=True)


def main() -> None:
    """Run the tables that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    for name in options.table:
        compare(name, options.share, options.seed, options.epochs)


if __name__ == "__main__":
    main()
