"""How close is equal: one place for all tolerances, by dtype and by what is compared."""

from dataclasses import dataclass

import numpy as np
import torch

__all__ = [
    "EXACT_GP",
    "GPYTORCH",
    "ONE_CELL_MORE",
    "PREDICTION",
    "SAME_FORMULA",
    "STEPS",
    "assert_close",
    "assert_monte_carlo",
    "assert_share",
]


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute tolerance of work in one dtype."""

    rtol: float
    atol: float


# The same mathematics in another order of operations.
SAME_FORMULA = {torch.float64: Tolerance(1e-9, 1e-10), torch.float32: Tolerance(2e-4, 2e-4)}
# Another library's code on the same parameters.
GPYTORCH = {torch.float64: Tolerance(1e-8, 1e-9), torch.float32: Tolerance(1e-3, 1e-3)}
# A sparse GP that should be exact, through two factorisations of a covariance that need not be well conditioned.
EXACT_GP = {torch.float64: Tolerance(1e-6, 1e-6), torch.float32: Tolerance(1e-2, 1e-2)}
# The same prediction in other chunks: jitter of 1e-8 bounds what rounding can grow to, about 1e-16 / 1e-8.
PREDICTION = {torch.float64: Tolerance(1e-6, 1e-8), torch.float32: Tolerance(5e-2, 5e-2)}
# A quadrature of a distribution function that is nearly a step.
STEPS = {torch.float64: Tolerance(0.0, 1e-3)}
# An average over some ten thousand cells into which one more has been mixed.
ONE_CELL_MORE = {torch.float64: Tolerance(1e-3, 1e-3)}
# How far a Monte Carlo average may lie from the truth; seeds are fixed, so that this is decided once.
STANDARD_ERRORS = 4.5


def assert_close(actual, expected, tolerances=SAME_FORMULA, dtype=torch.float64):
    """Numbers, arrays or tensors agree to the tolerance of their dtype."""
    tolerance = tolerances[dtype]
    np.testing.assert_allclose(_numbers(actual), _numbers(expected), rtol=tolerance.rtol, atol=tolerance.atol)


def assert_monte_carlo(draws, expected):
    """The average of draws along the first axis agrees with an exact expectation."""
    draws = _numbers(draws)
    error = draws.std(axis=0) / np.sqrt(len(draws))
    expected = _numbers(expected)
    distance = np.abs(draws.mean(axis=0) - expected)
    rounding = 1e-9 * (1.0 + np.abs(expected))
    assert (distance <= STANDARD_ERRORS * error + rounding).all(), f"{distance.max()} off, standard error {error.max()}"


def assert_share(events, expected):
    """The share of events along the first axis agrees with an exact probability, however near to 0 or 1."""
    events, expected = _numbers(events), _numbers(expected)
    error = np.sqrt(expected * (1.0 - expected) / len(events))
    distance = np.abs(events.mean(axis=0) - expected)
    # One event more or less is no news where hardly any is expected.
    assert (distance <= STANDARD_ERRORS * error + 2.0 / len(events)).all(), f"{distance.max()} off"


def _numbers(values):
    return values.detach().cpu().double().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
