"""Functions instead of cells: what a model says about many cells together, without a matrix of all pairs.

A model offers a `Joint`, from which a `View` of any cells comes: a mixture over draws of latent vectors whose
components are Gaussian, with means and independent `Block`s of what is unknown. Draws that are functions, covariances
and variances of sums follow from these. Random numbers belong to outputs, inputs and cells by name (`keyed`), so that a
draw does not depend on what else is asked.
"""

from manygp.functions.blocks import Block, Combination, Known, Left, Rows
from manygp.functions.process import At, Process
from manygp.functions.spectrum import Spectrum
from manygp.functions.sums import moments_of_sums
from manygp.functions.view import OWN, SHARED, Joint, View
from manygp.keyed import cell_keys, input_keys, normals

__all__ = [
    "OWN",
    "SHARED",
    "At",
    "Block",
    "Combination",
    "Joint",
    "Known",
    "Left",
    "Process",
    "Rows",
    "Spectrum",
    "View",
    "cell_keys",
    "input_keys",
    "moments_of_sums",
    "normals",
]
