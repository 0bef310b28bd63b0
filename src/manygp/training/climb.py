"""Climbs with all data at hand: L-BFGS on the parameters of a model, and Adam on rows of parameters."""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.errors import NumericalError
from manygp.memory import foreseen
from manygp.training.each import Problems
from manygp.training.history import History, Recorder
from manygp.training.journal import Journal, State, copied, recalled_history, told_history
from manygp.variational import ElboTerms

# Rise of the bound over so many iterations, in nats a cell, below which it counts as flat.
_WINDOW, _FLAT = 10, 1e-4
_ADVICE = "choose a number for num_inducing, or a smaller one"


def climb(
    parameters: Iterable[nn.Parameter],
    bound: Callable[[], ElboTerms],
    num_cells: int,
    max_steps: int,
    natural_rate: float = 0.0,
    journal: Journal | None = None,
    buffers: Iterable[Tensor] = (),
) -> History:
    """Maximise a bound that needs no draws by L-BFGS; the best that was found stands, whatever ends the climb.

    A record holds the best bound after an iteration. The reason to stop is "converged", "epochs", "failed" (a step led
    to where nothing can be computed), "time limit" or "interrupted" (Ctrl-C).

    Parameters
    ----------
    parameters
        What is learned; constants among them stay.
    bound
        The bound of the whole table at the parameters as they are. It may set q to its optimum on the way; it is called
        once more at the end, for what was best.
    num_cells
        Observed cells of the table.
    max_steps
        Most iterations.
    natural_rate
        That of the steps which `bound` takes, for the records.
    journal
        Where iterations are noted; a climb that it has seen goes on where it was.
    buffers
        What `bound` changes on the way, for the journal.

    Raises
    ------
    NumericalError
        If nothing finite was found.
    """
    learned = [parameter for parameter in parameters if parameter.requires_grad and parameter.numel()]
    optimizer = torch.optim.LBFGS(
        learned, max_iter=1, max_eval=20, history_size=20, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )
    recorder, best, reason, journal, changed = Recorder(), _Best(learned), "", journal or Journal(), list(buffers)

    def closure() -> float:
        optimizer.zero_grad()
        with foreseen("The bound of all cells", _ADVICE) if best.terms is None else nullcontext():
            terms = bound()
            loss = -terms.bound / num_cells
            loss.backward()
        return best.see(float(loss.detach()), terms)

    def state() -> State:
        return {
            "values": copied([*learned, *changed]),
            "optimizer": copied(optimizer.state_dict()),
            "best": copied({"loss": best.loss, "terms": best.terms, "kept": best.kept}),
            "history": told_history(recorder.history),
            "reason": reason,
        }

    saved = journal.begin()
    if saved is not None:
        with torch.no_grad():
            for own, value in zip([*learned, *changed], saved["values"], strict=True):
                own.copy_(value)
        optimizer.load_state_dict(copied(saved["optimizer"]))
        vars(best).update(copied(saved["best"]))
        recorder.history, reason = recalled_history(saved["history"]), saved["reason"]
    while not reason:
        if journal.is_active:
            journal.note(state())
        try:
            optimizer.step(closure)
        except NumericalError:
            reason = "failed"
        except KeyboardInterrupt:
            reason = "interrupted"
        if best.terms is not None:
            recorder.add(*best.terms, natural_rate=natural_rate)
        elif reason != "interrupted":
            raise NumericalError(
                "The bound is not finite where the climb begins: check the data for extreme values, or leave "
                "standardize at True."
            )
        reason = reason or _reason_to_stop(recorder.history["bound"], num_cells, max_steps)
        reason = reason or ("time limit" if journal.seconds_left <= 0.0 else "")
    if journal.is_active:
        if reason != "interrupted":
            journal.note(state())
        journal.flush()
    best.restore()
    with torch.no_grad():
        bound()
    return recorder.end(reason)


class _Best:
    """The lowest loss that was seen, with its terms and parameters."""

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters, self.loss = parameters, math.inf
        self.terms: tuple[float, float, float, float] | None = None
        self._keep()

    def _keep(self) -> None:
        self.kept = [parameter.detach().clone() for parameter in self.parameters]

    def see(self, loss: float, terms: ElboTerms) -> float:
        if math.isfinite(loss) and loss < self.loss:
            self.loss = loss
            parts = (terms.bound, terms.expected_log_lik, terms.kl_u, terms.kl_h)
            bound, expected_log_lik, kl_u, kl_h = (float(part.detach()) for part in parts)
            self.terms = bound, expected_log_lik, kl_u, kl_h
            self._keep()
        return loss

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, value in zip(self.parameters, self.kept, strict=True):
            parameter.copy_(value)


def _reason_to_stop(course: list[float], num_cells: int, max_steps: int) -> str:
    """Why a climb ends after such a course; empty if it goes on."""
    if len(course) > _WINDOW and course[-1] - course[-1 - _WINDOW] < _FLAT * num_cells:
        return "converged"
    return "epochs" if len(course) >= max_steps else ""


@torch.no_grad()
def climb_each(
    problems: Problems, rows: Float[Tensor, "u k"], steps: int, learning_rate: float, journal: Journal | None = None
) -> tuple[Float[Tensor, "u k"], History]:
    """Take Adam steps up many functions from where their parameters are, until they are over or Ctrl-C.

    Returns where they end. A record holds the sum of all functions before a step.

    Parameters
    ----------
    problems
        Computes values and gradients.
    rows
        Parameters of every problem.
    steps, learning_rate
        Number and size of the steps.
    journal
        Where steps are noted; a climb that it has seen goes on where it was.
    """
    rows, recorder, reason, journal = rows.clone(), Recorder(), "epochs", journal or Journal()
    which: Int[Tensor, " u"] = torch.arange(len(rows), device=rows.device)
    optimizer = torch.optim.Adam([rows], lr=learning_rate)

    def note() -> None:
        if journal.is_active:
            parts = {"rows": copied(rows), "optimizer": copied(optimizer.state_dict())}
            journal.note(parts | {"history": told_history(recorder.history)})

    saved = journal.begin()
    if saved is not None:
        rows.copy_(saved["rows"])
        optimizer.load_state_dict(copied(saved["optimizer"]))
        recorder.history = recalled_history(saved["history"])
    try:
        while len(recorder.history) < steps:
            if journal.seconds_left <= 0.0:
                reason = "time limit"
                break
            note()
            value, gradient = problems(rows, which)
            rows.grad = -gradient
            optimizer.step()
            recorder.add(float(value.sum()), float(value.sum()), learning_rate=learning_rate)
        note()
    except KeyboardInterrupt:
        reason = "interrupted"
    journal.flush()
    return rows.detach(), recorder.end(reason)
