"""Pictures of a report as numbers: gaps in blocks, calibration in bins."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from manygp.data import Table
from manygp.data.table import BoolArray, FloatArray

# Blocks of a picture of gaps, at most.
_WIDE, _HIGH = 320, 160
_LEVELS = np.linspace(0.05, 0.95, 19)
_BINS = 20


def gap_picture(table: Table) -> dict[str, Any] | None:
    """Return the share of cells that are observed, in blocks of outputs (down) and inputs (across); None for lists."""
    if table.row_outputs is not None:
        return None
    n, p = table.num_inputs, table.num_outputs
    order = np.argsort(table.X[:, 0], kind="stable") if table.num_features == 1 else np.arange(n)
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    wide, high = min(n, _WIDE), min(p, _HIGH)
    seen = np.zeros(high * wide)
    for row, output, _ in table.chunks():
        block = (output * high // p) * wide + rank[row] * wide // n
        seen += np.bincount(block, minlength=high * wide)
    down, across = np.bincount(np.arange(p) * high // p), np.bincount(np.arange(n) * wide // n)
    share = seen.reshape(high, wide) / np.outer(down, across)
    shades = np.round(255 * np.clip(share, 0.0, 1.0)).astype(np.uint8)
    return {"width": wide, "height": high, "shades": base64.b64encode(shades.tobytes()).decode("ascii")}


def reliability(pit: FloatArray, groups: Mapping[str, BoolArray]) -> dict[str, Any]:
    """Return the histogram of the PIT of cells (c,), and how many central intervals of each level hold, by group."""
    share = np.histogram(pit, bins=_BINS, range=(0.0, 1.0))[0] / max(len(pit), 1)
    # |2 PIT − 1| ≤ level says that a value lies in the central interval.
    reach = np.abs(2.0 * pit - 1.0)
    curves = {
        name: [round(float(np.mean(reach[inside] <= level)), 4) for level in _LEVELS]
        for name, inside in groups.items()
        if inside.any()
    }
    return {
        "pit": [round(float(value), 4) for value in share],
        "levels": [round(float(level), 2) for level in _LEVELS],
        "curves": curves,
        "cells": len(pit),
        "coverage90": round(float(np.mean(reach <= 0.9)), 3),
    }
