"""Answers about many cells of a prediction together: draws, covariances, weighted sums, events and joint scores.

In the user's units, and chunk by chunk; the mathematics is that of `manygp.functions`.
"""

from manygp.summaries.aggregate import Aggregate
from manygp.summaries.cells import JointCells
from manygp.summaries.events import Probability

__all__ = ["Aggregate", "JointCells", "Probability"]
