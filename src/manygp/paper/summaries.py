"""What records say of a row of a table: mean and spread over seeds, failures, or that nothing was run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manygp.paper.campaign import state_of
from manygp.paper.published import MINUTES, TIME
from manygp.paper.records import Record, Run
from manygp.paper.tables import Row


@dataclass(frozen=True)
class Summary:
    """A metric over the seeds of a run: mean and standard deviation of so many values, NaN if there is none.

    `error` is what the failed runs said, if some failed and none succeeded; stale is what has a record that was made
    with other sources of the model.
    """

    mean: float
    spread: float
    count: int
    error: str | None
    has_run: bool
    is_stale: bool

    @property
    def is_known(self) -> bool:
        """Whether there is a value."""
        return self.count > 0


def matching(records: Sequence[Record], row: Row, preset: str) -> list[Record]:
    """The records of a row, one for each seed."""
    run = row.run(preset, 0)
    return [record for record in records if run.matches(record)]


def summarise(records: Sequence[Record], metric: str) -> Summary:
    """A metric over records of the same run with different seeds."""
    finished = [record for record in records if "error" not in record]
    values = [value for record in finished if (value := _value(record, metric)) is not None]
    mean = float(np.mean(values)) if values else float("nan")
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    errors = [record["error"] for record in records if "error" in record]
    is_stale = any(state_of(Run.of(record), record) == "stale" for record in records)
    return Summary(mean, spread, len(values), errors[0] if errors and not finished else None, bool(records), is_stale)


def _value(record: Record, metric: str) -> float | None:
    if metric in (TIME, MINUTES):
        # On a busy machine the clock tells of the others; the work of one thread is what it is.
        seconds = float(record["cpu_seconds"] if record["cpu_seconds"] is not None else record["train_seconds"])
        if metric == MINUTES:
            return seconds / 60.0
        # A model that is solved rather than trained has no epochs to divide by.
        return seconds / record["epochs"] if record["epochs"] else None
    value = record["metrics"][metric]
    # JSON has no infinity; a record writes it as text.
    return None if value is None else float(value)
