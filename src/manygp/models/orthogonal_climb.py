"""How the OILMM climbs when all rows are at hand at once."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from manygp.errors import NumericalError
from manygp.models.oilmm import ExactProcesses, OrthogonalMixingModel
from manygp.models.orthogonal import Rows

__all__ = ["climb_likelihood"]

# Rise of the bound over so many iterations, in nats a cell, below which it counts as flat.
_WINDOW, _FLAT = 10, 1e-4


def climb_likelihood(
    model: OrthogonalMixingModel, rows: Callable[[], Rows], num_cells: int, max_steps: int
) -> tuple[list[float], str]:
    """Climb the log likelihood, or the bound with the best q(u), by L-BFGS; returns its course and why it ended.

    With all rows at hand the best q(u) is known in closed form, so that a natural step of rate 1 before every
    evaluation makes the bound a function of the other parameters alone. The reason is "converged", "steps", "failed"
    (a step led to where nothing can be computed) or "interrupted" (Ctrl-C); the best that was found stands in any case.

    Parameters
    ----------
    model
        The model to train.
    rows
        All rows through the basis as it is now.
    num_cells
        Observed cells of the table.
    max_steps
        Most iterations.

    Raises
    ------
    NumericalError
        If nothing finite was found.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.numel()]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=1, max_eval=20, history_size=20, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    best, kept = math.inf, [parameter.detach().clone() for parameter in parameters]

    def bound() -> Tensor:
        if isinstance(model.processes, ExactProcesses):
            return model.log_likelihood(rows())
        return model.bound(rows(), rate=1.0).bound

    def closure() -> float:
        nonlocal best, kept
        optimizer.zero_grad()
        loss = -bound() / num_cells
        loss.backward()
        value = float(loss.detach())
        if value < best:
            best, kept = value, [parameter.detach().clone() for parameter in parameters]
        return value

    course, reason = list[float](), ""
    while not reason:
        try:
            optimizer.step(closure)
        except NumericalError:
            reason = "failed"
        except KeyboardInterrupt:
            reason = "interrupted"
        if not math.isfinite(best) and reason != "interrupted":
            raise NumericalError(
                "The likelihood is not finite where OILMM begins: check the data for extreme values, or leave "
                "standardize at True."
            )
        if math.isfinite(best):
            course.append(-best * num_cells)
        reason = reason or _reason_to_stop(course, num_cells, max_steps)
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
        bound()
    return course, reason


def _reason_to_stop(course: list[float], num_cells: int, max_steps: int) -> str:
    """Why a climb ends after such a course; empty if it goes on."""
    if len(course) > _WINDOW and course[-1] - course[-1 - _WINDOW] < _FLAT * num_cells:
        return "converged"
    return "steps" if len(course) >= max_steps else ""
