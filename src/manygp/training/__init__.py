"""Training: four ways up, for all models, each of which leaves a `History`.

`train` draws batches from a plan, takes natural steps on q(u) and Adam steps on everything else, and decides when to
stop. It knows a model only as something with a bound (`Trainable`). With all data at hand, `climb` takes steps of
L-BFGS up one bound, `minimise_each` of BFGS on many small problems at once, and `climb_each` those of Adam. All of them
tell a `Journal` how far they are, and go on from there.
"""

from manygp.training.climb import climb, climb_each
from manygp.training.each import Minimum, minimise_each
from manygp.training.history import Correction, EpochRecord, History, Recorder
from manygp.training.journal import Journal
from manygp.training.loop import settle, train
from manygp.training.progress import Progress, make_progress
from manygp.training.schedule import Schedule
from manygp.training.step import Trainable, TrainingSettings

__all__ = [
    "Correction",
    "EpochRecord",
    "History",
    "Journal",
    "Minimum",
    "Progress",
    "Recorder",
    "Schedule",
    "Trainable",
    "TrainingSettings",
    "climb",
    "climb_each",
    "make_progress",
    "minimise_each",
    "settle",
    "train",
]
