"""What happened during training, epoch by epoch."""

import time
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

import pandas as pd

_ENDINGS = {
    "converged": "the bound had stopped rising",
    "epochs": "as many epochs had run as were asked for",
    "budget": "as many epochs had run as are allowed",
    "time limit": "its time limit left room for no more",
    "interrupted": "it was interrupted; what was learnt until then is kept",
    "start": "no epoch improved on the start, which is kept",
    "failed": "the numbers failed; the best until then is kept",
}


@dataclass(frozen=True)
class EpochRecord:
    """One epoch, averaged over its batches, or one iteration on all data: bound and terms of the whole table, in nats.

    An exact log evidence is a bound without divergences.
    """

    epoch: int
    bound: float
    expected_log_lik: float
    kl_u: float
    kl_h: float
    learning_rate: float
    natural_rate: float
    seconds: float


@dataclass(frozen=True)
class Correction:
    """Something that was changed once training was over: what, why, and what came of it."""

    name: str
    reason: str
    effect: str
    seconds: float


@dataclass(repr=False)
class History:
    """How a model came about: the records of all epochs, why training stopped, and what was before and after it.

    Attributes
    ----------
    records
        One `EpochRecord` per epoch.
    stop_reason
        "converged", "epochs" (the number asked for was reached), "budget", "time limit", "interrupted", "start" (which
        the model went back to, since no epoch improved on it), or "failed" (a step led to where nothing can be
        computed, and what was found before it stands).
    stages
        Seconds of the survey of the table, the start, the training and the corrections.
    survey
        What was found out about the table, a line for each fact that was asked for.
    corrections
        What was changed once training was over, one `Correction` for each that was tried.
    """

    records: list[EpochRecord] = field(default_factory=list)
    stop_reason: str = ""
    stages: dict[str, float] = field(default_factory=dict)
    survey: dict[str, str] = field(default_factory=dict)
    corrections: list[Correction] = field(default_factory=list)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "History":
        """What `dataclasses.asdict` made of a history."""
        parts = {name: [kind(**part) for part in plain[name]] for name, kind in _PARTS.items()}
        return cls(**plain | parts)

    def __repr__(self) -> str:
        if not self.records:
            return "<History of no epoch>"
        bound = f"bound {self.records[-1].bound:,.1f} nats"
        return f"<History of {len(self)} epochs in {self.seconds:.1f} s, {self.stop_reason}: {bound}>"

    def _repr_html_(self) -> str:
        """The same with a line of the bound over the epochs, for notebooks."""
        values = self["bound"][len(self) // 10 :]
        low, high = min(values, default=0.0), max(values, default=1.0)
        steps, rise = max(len(values) - 1, 1), (high - low) or 1.0
        points = " ".join(f"{240 * i / steps:.1f},{46 - 44 * (v - low) / rise:.1f}" for i, v in enumerate(values))
        line = f'<polyline points="{points}" fill="none" stroke="#0072B2" stroke-width="1.5"/>'
        return f'<div>{escape(repr(self))}<br><svg width="242" height="48">{line}</svg></div>'

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, name: str) -> list[float]:
        """The values of one column, such as `history["bound"]`."""
        return [getattr(record, name) for record in self.records]

    @property
    def seconds(self) -> float:
        """Time spent in training."""
        return sum(self["seconds"])

    @property
    def ending(self) -> str:
        """Why training stopped, in words that follow "because"."""
        return _ENDINGS.get(self.stop_reason, self.stop_reason)

    def to_frame(self) -> pd.DataFrame:
        """One row per epoch."""
        return pd.DataFrame([asdict(record) for record in self.records])


_PARTS: dict[str, Any] = {"records": EpochRecord, "corrections": Correction}


class Recorder:
    """Writes a history, each record with the seconds since the one before."""

    def __init__(self) -> None:
        self.history, self._since = History(), time.perf_counter()

    def add(
        self,
        bound: float,
        expected_log_lik: float,
        kl_u: float = 0.0,
        kl_h: float = 0.0,
        learning_rate: float = 0.0,
        natural_rate: float = 0.0,
    ) -> None:
        """Take note of an iteration; rates are zero where there are none."""
        now, terms = time.perf_counter(), (bound, expected_log_lik, kl_u, kl_h)
        record = EpochRecord(len(self.history) + 1, *terms, learning_rate, natural_rate, now - self._since)
        self.history.records.append(record)
        self._since = now

    def end(self, stop_reason: str) -> History:
        """The history, with why it ended."""
        self.history.stop_reason = stop_reason
        return self.history
