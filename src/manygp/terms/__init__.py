"""Terms: what a model adds to its GP, each a module with one interface.

A term adds a mean or a covariance to cells, and says what it expects of outputs that were not in the fit. The model of
a paper has none.
"""

from manygp.terms.level import Level
from manygp.terms.own import OwnPart
from manygp.terms.row_effects import RowEffects
from manygp.terms.shared import SharedPart, SharedShocks
from manygp.terms.term import Points, Term
from manygp.terms.terms import Terms, make_term
from manygp.terms.trend import Trend

__all__ = [
    "Level",
    "OwnPart",
    "Points",
    "RowEffects",
    "SharedPart",
    "SharedShocks",
    "Term",
    "Terms",
    "Trend",
    "make_term",
]
