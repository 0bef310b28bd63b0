"""The observation table and everything that is done to data before a model sees them.

A `Table` is either a `Grid` (inputs shared by all outputs, values with gaps) or `Cells` (a list of
observations); `as_table` and `cells_table` make one from what the user has and are the only place where data
are validated. A `Scaling` maps inputs and values to comparable size and predictions back. A plan (`GridPlan`,
`CellPlan`) cuts a table into unbiased minibatches; values that are too large for memory stay `Stored` and are read
in blocks. Splits hold cells out, `factorise` fills gaps by a low-rank
matrix completion, and `read_table` reads files. Nothing here knows torch, nothing copies a whole table.
"""

from manygp.data.adapters import as_inputs, as_table, cells_table
from manygp.data.batches import Batch, CellPlan, GridPlan, Plan, ShardPlan
from manygp.data.cells import Cells
from manygp.data.factorisation import Factorisation, RankChoice, choose_rank, completed_scaling, factorise
from manygp.data.files import read_inputs, write_frame
from manygp.data.grid import Grid
from manygp.data.groups import Grouping, GroupPlan
from manygp.data.scaling import OutputScale, Scaling
from manygp.data.sources import read_table
from manygp.data.splits import block_split, gap_split, output_split, pattern_split, random_split
from manygp.data.stored import Stored, as_stored
from manygp.data.table import Table

__all__ = [
    "Batch",
    "CellPlan",
    "Cells",
    "Factorisation",
    "Grid",
    "GridPlan",
    "GroupPlan",
    "Grouping",
    "OutputScale",
    "Plan",
    "RankChoice",
    "Scaling",
    "ShardPlan",
    "Stored",
    "Table",
    "as_inputs",
    "as_stored",
    "as_table",
    "block_split",
    "cells_table",
    "choose_rank",
    "completed_scaling",
    "factorise",
    "gap_split",
    "output_split",
    "pattern_split",
    "random_split",
    "read_inputs",
    "read_table",
    "write_frame",
]
