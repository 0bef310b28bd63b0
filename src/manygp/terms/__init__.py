"""Terms: what a model adds to its GP, each a module with one interface.

A term adds a covariance to the observations of cells, and says what it expects of outputs that were not in the fit. The
model of a paper has none.
"""

from manygp.terms.own import OwnPart
from manygp.terms.shocks import SharedShocks
from manygp.terms.term import Points, Term

__all__ = ["OwnPart", "Points", "SharedShocks", "Term"]
