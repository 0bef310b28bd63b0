"""Generated tables on which plain methods are strong, with scattered and lost cells: T-LVMOGP beside them.

`python -m benchmarks.gaps [--table NAME ...] [--model plain tlvmogp ...] [--seeds 0 1 2] [--set KEY=VALUE ...]
[--records FILE]` prints each result as it is done to stderr, and at the end a table of scores, and of wins and losses
against the best plain method. What is held out and how it is scored: `benchmarks.protocol`.
"""

import numpy as np

from benchmarks.protocol import GapTable, command


def smooth_series(rng: np.random.Generator, n: int = 1_000, p: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Almost noise-free concentrations that change within ten rows or within hundreds."""
    t = np.arange(float(n))
    lengthscales = 10.0 ** rng.uniform(1.2, 2.3, 6)
    shared = np.stack([_smooth(t[:, None], lengthscale, 1, rng)[:, 0] for lengthscale in lengthscales], 1)
    own = _smooth(t[:, None], 50.0, p, rng)
    log_level = shared @ rng.standard_normal((6, p)) / np.sqrt(6.0) + 0.05 * own
    Y = np.logaddexp(0.0, 2.0 * log_level)
    return t[:, None], Y + 1e-3 * Y.std(0) * rng.standard_normal(Y.shape)


def daily_profiles(rng: np.random.Generator, n: int = 2_000, p: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Hours with a daily and a weekly profile, slow levels and weather that lasts, and outages of one to five days."""
    hour = np.arange(float(n))
    day, week = hour / 24.0, hour / 168.0
    profiles = _periodic(day, 5, 4, rng)
    workday = 1.0 - 0.6 / (1.0 + np.exp(-20.0 * (np.cos(2.0 * np.pi * (week - 0.9)) - 0.62)))
    weights = np.abs(rng.standard_normal((4, p)))
    busy = (profiles @ weights) * workday[:, None] ** rng.uniform(0.0, 2.0, p)
    level = _smooth(day[:, None], 10.0, 2, rng) @ rng.standard_normal((2, p)) * 0.4
    weather = _autoregressive(n, 0.9, 1, rng) @ rng.uniform(0.0, 0.4, (1, p)) + 0.15 * _autoregressive(n, 0.7, p, rng)
    Y = busy + level + weather + 0.05 * rng.standard_normal((n, p))
    for j in range(p):
        length = int(rng.integers(24, 121))
        first = int(rng.integers(0, n - length))
        Y[first : first + length, j] = np.nan
    return hour[:, None], Y


def random_walks(rng: np.random.Generator, n: int = 1_500, p: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Prices: random walks that share three kinds of shocks, of tails heavier than Gaussian."""
    shocks = rng.standard_t(4.0, (n, 3)) @ rng.standard_normal((3, p)) + 0.7 * rng.standard_t(4.0, (n, p))
    Y = np.cumsum(shocks * rng.uniform(0.5, 2.0, p), 0)
    return np.arange(float(n))[:, None], Y


def motion(rng: np.random.Generator, n: int = 3_000, p: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Markers of a body whose state is another after a few frames: a bent manifold of three dimensions."""
    state, features = _autoregressive(n, 0.5, 3, rng), 300
    hidden = np.tanh(1.5 * state @ rng.standard_normal((3, features)) + rng.standard_normal(features))
    Y = hidden @ rng.standard_normal((features, p)) / np.sqrt(features)
    return np.arange(float(n))[:, None], Y + 0.03 * Y.std(0) * rng.standard_normal(Y.shape)


def own_places(rng: np.random.Generator, n: int = 20_000, p: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Cells with inputs of their own: every output is measured at places where no other is."""
    X = rng.uniform(0.0, 1.0, (n * p, 2))
    shared = np.hstack([_smooth(X, lengthscale, 2, rng) for lengthscale in (0.4, 0.15, 0.05, 0.02)])
    weights = rng.standard_normal((8, p)) * np.repeat([1.0, 0.8, 0.5, 0.3], 2)[:, None]
    F = shared @ weights
    Y = F + 0.15 * F.std(0) * rng.standard_normal(F.shape)
    return X, np.where(np.arange(p) == rng.permutation(np.repeat(np.arange(p), n))[:, None], Y, np.nan)


def unequal_months(rng: np.random.Generator, n: int = 60, p: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Months at many places: a season, patterns of single months, noise that differs by a factor of four."""
    month, places = np.arange(float(n)), rng.uniform(0.0, 1.0, (p, 2))
    season = np.stack([np.sin(2.0 * np.pi * month / 12.0), np.cos(2.0 * np.pi * month / 12.0)], 1)
    amplitudes = 1.0 + 0.3 * _smooth(places, 0.3, 2, rng)
    patterns = rng.standard_normal((n, 6)) @ (0.25 * _smooth(places, 0.2, 6, rng)).T
    noise = 0.1 * 4.0 ** rng.permutation(np.linspace(0.0, 1.0, n))
    return month[:, None], season @ amplitudes.T + patterns + noise[:, None] * rng.standard_normal((n, p))


TABLES = {
    "smooth series": GapTable(smooth_series),
    "daily profiles": GapTable(daily_profiles),
    "random walks": GapTable(random_walks),
    "motion": GapTable(motion),
    "own places": GapTable(own_places, stretch=0.02),
    "unequal months": GapTable(unequal_months, stretch=0.2),
}


def _smooth(X: np.ndarray, lengthscale: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of a GP with a Matérn 5/2 kernel, by random features, shape (n, count)."""
    features = 1_000
    # A Matérn kernel of smoothness ν has Student's t with 2ν degrees of freedom for a spectral density.
    scale = np.sqrt(5.0 / rng.chisquare(5.0, features)) / lengthscale
    frequency, phase = rng.standard_normal((X.shape[1], features)) * scale, rng.uniform(0.0, 2.0 * np.pi, features)
    weights = rng.standard_normal((features, count)) * np.sqrt(2.0 / features)
    chunks = np.array_split(X, max(1, len(X) // 5_000))
    return np.concatenate([np.cos(chunk @ frequency + phase) @ weights for chunk in chunks])


def _periodic(turn: np.ndarray, harmonics: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Positive functions of period 1 that vary with a few harmonics, shape (n, count)."""
    order = np.arange(1, harmonics + 1)
    angle = 2.0 * np.pi * turn[:, None] * order
    waves = np.hstack([np.sin(angle), np.cos(angle)])
    return np.exp(waves @ (rng.standard_normal((2 * harmonics, count)) / np.tile(order, 2)[:, None] ** 1.5))


def _autoregressive(n: int, memory: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Stationary first-order processes of variance 1, shape (n, count)."""
    values = rng.standard_normal((n, count))
    for t in range(1, n):
        values[t] = memory * values[t - 1] + np.sqrt(1.0 - memory**2) * values[t]
    return values


if __name__ == "__main__":
    command(TABLES, __doc__ or "")
