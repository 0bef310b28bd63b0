"""Many small smooth problems minimised at once: BFGS with an axis for the problems."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.memory import foreseen
from manygp.training.history import Recorder
from manygp.training.journal import Journal, copied, recalled_history, told_history

# A step must bring this share of what the slope promises, and shrinks by this factor when it does not.
_ARMIJO, _SHRINK = 1e-4, 0.3
# The first direction is the gradient, whose length means nothing: no parameter moves farther than this.
_FIRST_STEP = 0.5
_MAX_STEP = 3.0
_MIN_LENGTH = 1e-8

#: Values (r,) and gradients (r, k) of the problems `which` at points x (r, k).
Problems = Callable[[Float[Tensor, "r k"], Int[Tensor, " r"]], tuple[Float[Tensor, " r"], Float[Tensor, "r k"]]]


@dataclass(frozen=True)
class Minimum:
    """Where each problem was left, its value there, how often all were evaluated, and why the search ended.

    The reason is "converged", "budget", "time limit" or "interrupted", as in `History`.
    """

    x: Float[Tensor, "u k"]
    value: Float[Tensor, " u"]
    evaluations: int
    stop_reason: str


@torch.no_grad()
def minimise_each(
    problems: Problems,
    start: Float[Tensor, "u k"],
    max_evaluations: int = 100,
    tolerance: float = 1e-6,
    observe: Callable[[Float[Tensor, "u k"], Float[Tensor, " u"]], None] | None = None,
    journal: Journal | None = None,
    recorder: Recorder | None = None,
) -> Minimum:
    """Minimise u independent functions of k variables.

    Every problem has its own direction, step length and approximation of the inverse Hessian; all are evaluated
    together and leave when an accepted step gains less than `tolerance` times the size of the value. Time beside the
    evaluations is O(u k²). Ctrl-C ends the search with what it has found.

    Parameters
    ----------
    problems
        Computes values and gradients; a value that is not finite counts as infinite.
    start
        Where to begin; values there must be finite.
    max_evaluations
        Most evaluations of a problem.
    tolerance
        Relative gain at which a problem counts as solved.
    observe
        Called after every evaluation with where each problem is, and its value there.
    journal
        Where evaluations are noted; a search that it has seen goes on where it was.
    recorder
        What `observe` writes to, for the journal.
    """
    journal, recorder = journal or Journal(), recorder or Recorder()
    saved, evaluations = journal.begin(), 1
    if saved is not None:
        at: dict[str, Tensor] = copied(saved["at"])
        evaluations, recorder.history = saved["evaluations"], recalled_history(saved["history"])
    else:
        at = _begin(problems, start)

    def note() -> None:
        if journal.is_active:
            told = {"evaluations": evaluations, "history": told_history(recorder.history)}
            journal.note({"at": copied(at), **told})

    while len(at["which"]) and evaluations < max_evaluations and journal.seconds_left > 0.0:
        note()
        try:
            at = _iterate(problems, at, tolerance)
        except KeyboardInterrupt:
            journal.flush()
            return Minimum(at["x"], at["result"], evaluations, "interrupted")
        evaluations += 1
        if observe is not None:
            observe(at["x"], at["result"])
    note()
    journal.flush()
    reason = "converged" if not len(at["which"]) else "budget" if journal.seconds_left > 0.0 else "time limit"
    return Minimum(at["x"], at["result"], evaluations, reason)


def _begin(problems: Problems, start: Float[Tensor, "u k"]) -> dict[str, Tensor]:
    """Where all problems are, with their values; and of those that are open, `which` they are and all else."""
    x, k = start.clone(), start.shape[1]
    which = torch.arange(len(x), device=x.device)
    with foreseen(f"A look at all {len(x)} problems", "choose a number for num_inducing, or a smaller one", x.device):
        value, gradient = problems(x, which)
    return {
        "x": x,
        "result": value.clone(),
        "which": which,
        "here": x.clone(),
        "value": value,
        "gradient": gradient,
        "H": torch.eye(k, dtype=x.dtype, device=x.device).expand(len(x), k, k).clone(),
        "fresh": torch.ones(len(x), dtype=torch.bool, device=x.device),
        "step": _first_step(gradient),
        "length": torch.ones_like(value),
    }


def _iterate(problems: Problems, at: dict[str, Tensor], tolerance: float) -> dict[str, Tensor]:
    """Evaluate all open problems once, take the steps that lead down, and leave out what is solved."""
    which, here, value, gradient = at["which"], at["here"], at["value"], at["gradient"]
    H, fresh, step, length = at["H"], at["fresh"], at["step"], at["length"]
    trial = here + length.unsqueeze(-1) * step
    new_value, new_gradient = problems(trial, which)
    slope = (gradient * step).sum(-1)
    accepted = new_value.nan_to_num(torch.inf) <= value + _ARMIJO * length * slope
    gain = torch.where(accepted, value - new_value, torch.inf)
    H = torch.where(accepted.view(-1, 1, 1), _update(H, trial - here, new_gradient - gradient, fresh), H)
    row = accepted.unsqueeze(-1)
    here, gradient = torch.where(row, trial, here), torch.where(row, new_gradient, gradient)
    value = torch.where(accepted, new_value, value)
    step = torch.where(row, _direction(H, gradient), step)
    length = torch.where(accepted, torch.ones_like(length), _SHRINK * length)
    x, result = at["x"].index_copy(0, which, here), at["result"].index_copy(0, which, value)
    open_ = (gain > tolerance * value.abs().clamp(min=1.0)) & (length > _MIN_LENGTH)
    rest = {"which": which, "here": here, "value": value, "gradient": gradient, "H": H, "fresh": fresh & ~accepted}
    rest |= {"step": step, "length": length}
    return {"x": x, "result": result} | {name: part[open_] for name, part in rest.items()}


def _first_step(gradient: Tensor) -> Tensor:
    return -gradient * (_FIRST_STEP / gradient.abs().amax(-1, keepdim=True).clamp(min=_FIRST_STEP))


def _direction(H: Tensor, gradient: Tensor) -> Tensor:
    """−H g, no longer than a step may be, or the gradient where that does not lead down."""
    step = -(H @ gradient.unsqueeze(-1)).squeeze(-1)
    step = step * (_MAX_STEP / step.abs().amax(-1, keepdim=True).clamp(min=_MAX_STEP))
    downhill = (step * gradient).sum(-1, keepdim=True) < 0
    return torch.where(downhill, step, _first_step(gradient))


def _update(H: Tensor, s: Tensor, y: Tensor, fresh: Tensor) -> Tensor:
    """The BFGS update of inverse Hessians, left out where the curvature along the step is not positive."""
    sy = (s * y).sum(-1)
    curved = sy > 1e-10 * s.norm(dim=-1) * y.norm(dim=-1)
    sy = torch.where(curved, sy, 1.0)
    # The first approximation gets the scale that the first step has shown.
    scale = torch.where(fresh & curved, sy / y.square().sum(-1).clamp(min=1e-300), 1.0)
    H = H * scale.view(-1, 1, 1)
    Hy = (H @ y.unsqueeze(-1)).squeeze(-1)
    yHy = (y * Hy).sum(-1)
    # H ← H + (1 + yᵀHy / sᵀy) s sᵀ / sᵀy − (H y sᵀ + s yᵀH) / sᵀy
    cross = Hy.unsqueeze(-1) * s.unsqueeze(-2)
    outer = s.unsqueeze(-1) * s.unsqueeze(-2)
    change = ((1.0 + yHy / sy) / sy).view(-1, 1, 1) * outer - (cross + cross.mT) / sy.view(-1, 1, 1)
    return torch.where(curved.view(-1, 1, 1), H + change, H)
