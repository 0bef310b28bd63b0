"""The examples run as they are and say what they promise."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# What each example must come to, read off the variables that it leaves behind.
PROMISES = {
    "acquisition": lambda names: 0.0 <= float(names["where"]) <= 1.0,
    "cells": lambda names: names["dist"].shape == (2,),
    "counts": lambda names: 0.82 <= names["scores"]["coverage90"] <= 0.97,
    "feed": lambda names: names["error"] < 0.25 * names["alone"] and not names["model"].refit_advised_,
    "gaps": lambda names: 0.85 <= names["inside"][names["lost"]].mean() <= 1.0,
    "region_mean": lambda names: (
        names["together"].mean() > 1.1 * names["alone"].mean() and len(names["figure"].axes) >= 3
    ),
    "robot_arm": lambda names: names["scores"]["mse"] < 0.5 * names["boosted"] and names["scores"]["coverage90"] > 0.8,
    "sea_temperature": lambda names: names["after"]["mse"] < names["scores"]["mse"] < 1.0,
    "spatial_counts": lambda names: 0.8 <= names["scores"]["coverage90"] <= 0.97 and len(names["section"].layers) == 2,
    "sklearn_pipeline": lambda names: names["search"].best_params_ == {"tlvmogp__latent_dim": 3},
    "xarray_field": lambda names: (
        names["filled"]["mean"].dims == names["field"].dims and 0.85 <= names["inside"] <= 0.95
    ),
}


@pytest.mark.parametrize("name", sorted(PROMISES))
def test_an_example_keeps_its_promise(name, capsys):
    names = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert PROMISES[name](names)
    assert names["figure"].axes
    assert capsys.readouterr().out


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROMISES)


@pytest.mark.parametrize("name", sorted(PROMISES))
def test_an_example_is_short(name):
    _, _, program = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").split('"""', 2)
    assert len(program.strip().splitlines()) < 40
