"""The paper's evaluation as data: data sets, settings, runs, tables and figures.

A `Dataset` returns a `Problem`; a `Row` of a `PaperTable` names a `Run`; `carry_out_all` makes one JSON record a run.
Others add to it from outside with `register_dataset`, `register_model`, `register_settings` and `register_table`.
"""

from manygp.paper.campaign import every_run, status
from manygp.paper.datasets import DATASETS, Dataset, find_dataset, register_dataset
from manygp.paper.models import find_model, register_model
from manygp.paper.page import findings, write_page
from manygp.paper.problem import Problem
from manygp.paper.records import Run, read_records
from manygp.paper.rendering import render
from manygp.paper.runner import carry_out_all, parse_seeds
from manygp.paper.settings import register_settings, settings_for
from manygp.paper.tables import TABLES, PaperTable, Row, find_tables, register_table, runs_of

__all__ = [
    "DATASETS",
    "TABLES",
    "Dataset",
    "PaperTable",
    "Problem",
    "Row",
    "Run",
    "carry_out_all",
    "every_run",
    "find_dataset",
    "find_model",
    "find_tables",
    "findings",
    "parse_seeds",
    "read_records",
    "register_dataset",
    "register_model",
    "register_settings",
    "register_table",
    "render",
    "runs_of",
    "settings_for",
    "status",
    "write_page",
]
