"""What happened during training, epoch by epoch."""

from dataclasses import asdict, dataclass, field

import pandas as pd

__all__ = ["EpochRecord", "History"]


@dataclass(frozen=True)
class EpochRecord:
    """Averages over one epoch; the bound and its terms are those of the whole table, in nats."""

    epoch: int
    bound: float
    expected_log_lik: float
    kl_u: float
    kl_h: float
    learning_rate: float
    natural_rate: float
    seconds: float


@dataclass(repr=False)
class History:
    """The records of all epochs, and why training stopped.

    Attributes
    ----------
    records
        One `EpochRecord` per epoch.
    stop_reason
        "converged", "epochs" (the number asked for was reached), "budget", "interrupted", "start" (which the model went
        back to, since no epoch improved on it), or "failed" (a step of OILMM led to where nothing can be computed, and
        what was found before it stands).
    """

    records: list[EpochRecord] = field(default_factory=list)
    stop_reason: str = ""

    def __repr__(self) -> str:
        if not self.records:
            return "<History of no epoch>"
        bound = f"bound {self.records[-1].bound:,.1f} nats"
        return f"<History of {len(self)} epochs in {self.seconds:.1f} s, {self.stop_reason}: {bound}>"

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, name: str) -> list[float]:
        """The values of one column, such as `history["bound"]`."""
        return [getattr(record, name) for record in self.records]

    @property
    def seconds(self) -> float:
        """Time spent in training."""
        return sum(self["seconds"])

    def to_frame(self) -> pd.DataFrame:
        """One row per epoch."""
        return pd.DataFrame([asdict(record) for record in self.records])
