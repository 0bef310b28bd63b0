"""Step sizes over the course of a run whose length need not be known in advance."""

import itertools
import math
from dataclasses import dataclass, field

# Two windows are compared to see whether the bound still rises: such a share of the run so far, but not fewer steps
# than this. So a run goes on while making it a fifth longer pays. In a window of fewer steps than the last number, a
# rise counts as flat in proportion.
_WINDOW_SHARE, _WINDOW_STEPS, _FULL_WINDOW = 0.2, 40, 100
_WARMUP_STEPS = 20
# Share of the longest run after which a bound must have been reached, if it must.
_TRIAL_SHARE = 0.05
_FINAL_SHARE = 0.02


@dataclass
class Schedule:
    """Warm-up, plateau, decay: the plateau lasts until the bound stops rising, the decay ends the run.

    Learning rate: rises over the first steps, stays, and falls along a cosine at the end. Natural rate: starts at 1
    (q(u) jumps to the optimum of the first batch) and settles at a floor that averages over batches.
    """

    #: Number of batches in an epoch.
    steps_per_epoch: int
    #: Step size of the plateau.
    learning_rate: float
    #: Length of the run, or None to find it.
    epochs: int | None
    #: Most epochs when the length is to be found.
    max_epochs: int
    #: Rise of the bound, in nats a cell over a window of a hundred steps or more, below which it counts as flat.
    tolerance: float = 2e-2
    #: Share of the run that is spent in the decay.
    decay_share: float = 0.3
    natural_floor: float = 0.1
    #: Bound per cell without which a run whose length is to be found ends after a trial.
    least_bound: float = -math.inf
    #: Epochs of a window at least.
    least_window: int = 2
    bounds: list[float] = field(default_factory=list)
    decay_start: int | None = None
    end: int = 0

    def __post_init__(self) -> None:
        self.end = self.epochs or self.max_epochs
        if self.epochs is not None:
            self.decay_start = math.ceil((1.0 - self.decay_share) * self.epochs)
        self.is_flat = self.is_hurried = False

    @property
    def is_over(self) -> bool:
        """Whether the run has reached its end."""
        return len(self.bounds) >= self.end

    @property
    def stop_reason(self) -> str:
        if self.is_hurried:
            return "time limit"
        if self.epochs is not None:
            return "epochs"
        return "converged" if self.is_flat else "budget"

    def record(self, bound_per_cell: float) -> None:
        """Take note of an epoch, and begin the decay if the bound has become flat or the budget runs out."""
        self.bounds.append(bound_per_cell)
        if self.decay_start is not None:
            return
        done = len(self.bounds)
        trial = max(self._window(), math.ceil(_TRIAL_SHARE * self.max_epochs))
        if done >= trial and max(self.bounds) < self.least_bound:
            self.end = done
            return
        self.is_flat = self._flat()
        if self.is_flat or done >= (1.0 - self.decay_share) * self.max_epochs:
            self.decay_start = done
            self.end = max(done + 1, min(self.max_epochs, math.ceil(done / (1.0 - self.decay_share))))

    def hurry(self, epochs_left: float) -> None:
        """There is time for so many epochs more: begin the decay when it is time for it, and end when time is up."""
        done, total = len(self.bounds), len(self.bounds) + epochs_left
        if total >= self.end:
            return
        is_falling = self.decay_start is not None and self.decay_start <= done
        if not is_falling and done + 1 > (1.0 - self.decay_share) * total:
            self.decay_start = done
            is_falling = True
        if is_falling:
            self.end, self.is_hurried = max(done, int(total)), True

    @property
    def expected_end(self) -> int:
        """About how many epochs the run will have: where its bound will be flat if rises go on falling as they do."""
        window, rises = self._window(), self._rises()
        if self.decay_start is not None or len(rises) < 2 or not rises[0] > rises[1] > 0.0:
            return self.end
        # Rises of r, r q, r q², … in windows that follow each other
        more = math.log(max(rises[1] / self._flat_rise(), 1.0)) / math.log(rises[0] / rises[1])
        return min(self.end, math.ceil((len(self.bounds) + more * window) / (1.0 - self.decay_share)))

    def _flat(self) -> bool:
        return len(self.bounds) >= 3 * self._window() and self._rises()[-1] < self._flat_rise()

    def _flat_rise(self) -> float:
        """Rise of the bound from a window to the next below which it counts as flat."""
        return self.tolerance * min(1.0, self._window() * self.steps_per_epoch / _FULL_WINDOW)

    def _rises(self) -> list[float]:
        """Rises of the bound between the last three windows, or as many as there are."""
        window = self._window()
        ends = [len(self.bounds) - i * window for i in (2, 1, 0)]
        means = [sum(self.bounds[end - window : end]) / window for end in ends if end >= window]
        return [after - before for before, after in itertools.pairwise(means)]

    def _window(self) -> int:
        least = max(self.least_window, math.ceil(_WINDOW_STEPS / self.steps_per_epoch))
        return max(least, math.ceil(_WINDOW_SHARE * len(self.bounds)))

    def rates(self, step: int) -> tuple[float, float]:
        """Learning rate and natural rate of the given step, counted from the start of the run."""
        share = self._share(step)
        warm = min(1.0, (step + 1) / _WARMUP_STEPS)
        natural = max(self.natural_floor * max(share, 0.1), (step + 1.0) ** -0.75)
        return self.learning_rate * warm * share, natural

    def _share(self, step: int) -> float:
        """Share of the plateau's learning rate at a step: 1, then a cosine down to a small rest."""
        epoch = step / self.steps_per_epoch
        if self.decay_start is None or epoch <= self.decay_start:
            return 1.0
        position = min(1.0, (epoch - self.decay_start) / max(self.end - self.decay_start, 1))
        return _FINAL_SHARE + (1.0 - _FINAL_SHARE) * 0.5 * (1.0 + math.cos(math.pi * position))
