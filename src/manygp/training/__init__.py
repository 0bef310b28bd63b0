"""Training: one loop for all models.

The loop draws batches from a plan, takes natural steps on q(u) and Adam steps on everything else, and decides when to
stop. It knows a model only as something with a bound (`Trainable`).
"""

from manygp.training.history import EpochRecord, History
from manygp.training.loop import Trainable, TrainingSettings, settle, train
from manygp.training.progress import Progress, make_progress
from manygp.training.schedule import Schedule

__all__ = [
    "EpochRecord",
    "History",
    "Progress",
    "Schedule",
    "Trainable",
    "TrainingSettings",
    "make_progress",
    "settle",
    "train",
]
