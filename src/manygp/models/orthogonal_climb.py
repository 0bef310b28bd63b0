"""How the OILMM climbs when all rows are at hand at once."""

from collections.abc import Callable

import torch

from manygp.models.oilmm import ExactProcesses, OrthogonalMixingModel
from manygp.models.orthogonal import Rows
from manygp.training import History, Journal, climb
from manygp.variational import ElboTerms

__all__ = ["climb_likelihood"]


def climb_likelihood(
    model: OrthogonalMixingModel,
    rows: Callable[[], Rows],
    num_cells: int,
    max_steps: int,
    journal: Journal | None = None,
) -> History:
    """Climb the log likelihood, or the bound with the best q(u), see `climb`.

    With all rows at hand the best q(u) is known in closed form, so that a natural step of rate 1 before every
    evaluation makes the bound a function of the other parameters alone.
    """

    def exact() -> ElboTerms:
        total = model.log_likelihood(rows())
        return ElboTerms(total, torch.zeros_like(total), torch.zeros_like(total))

    if isinstance(model.processes, ExactProcesses):
        return climb(model.parameters(), exact, num_cells, max_steps, journal=journal)
    # Where processes are coupled, a step of rate 1 depends on the q(u) before it.
    posterior = model.processes.posterior.buffers()
    best = lambda: model.bound(rows(), rate=1.0)  # noqa: E731
    return climb(model.parameters(), best, num_cells, max_steps, 1.0, journal, posterior)
