"""Inputs of a table are found again up to rounding, and others are not."""

import copy
import logging

import numpy as np
import pytest
import torch

from manygp.variational import KnownInputs

from ...laws import worlds


@pytest.mark.parametrize("d", [1, 3, 20])
@pytest.mark.parametrize("change", ["none", "float32", "six digits after the point", "a rotation and back"])
def test_inputs_are_found_through_rounding(rng, d, change):
    x = worlds.normal(rng, 50, d)
    asked = x[[7, 7, 3, 49]]
    if change == "float32":
        asked = asked.float().double()
    if change == "six digits after the point":
        asked = torch.as_tensor(np.round(asked.numpy(), 6))
    if change == "a rotation and back":
        Q = torch.linalg.qr(worlds.normal(rng, d, d))[0]
        asked = asked @ Q @ Q.T
    assert KnownInputs(x).find(asked).tolist() == [7, 7, 3, 49]


def test_others_are_not_found(rng):
    x = worlds.normal(rng, 50, 2)
    away = torch.tensor([[0.0, 1e-4]], dtype=torch.float64)
    assert KnownInputs(x).find(x[:3] + away).tolist() == [-1, -1, -1]
    assert KnownInputs(x).find(x[:0]).tolist() == []


def test_the_nearest_of_several_is_meant(rng):
    x = torch.cat([worlds.normal(rng, 20, 1), torch.tensor([[3.0], [3.0 + 5e-7]], dtype=torch.float64)])
    assert KnownInputs(x).find(torch.tensor([[3.0 + 4e-7], [3.0 + 1e-7]], dtype=torch.float64)).tolist() == [21, 20]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_tolerance_is_relative_to_the_spread_of_every_column(rng, scale):
    x = worlds.normal(rng, 30, 2) * torch.tensor([scale, 1.0])
    known = KnownInputs(x)
    for size, found in ((3e-7, 5), (1e-4, -1)):
        assert known.find(x[5:6] + torch.tensor([[size * scale, 0.0]])).tolist() == [found]


def test_columns_that_do_not_vary(rng):
    x = torch.cat([worlds.normal(rng, 9, 1), torch.full((9, 1), 7.0, dtype=torch.float64)], -1)
    known = KnownInputs(x)
    assert known.find(x[4:5] + torch.tensor([[0.0, 1e-9]])).tolist() == [4]
    assert known.find(x[4:5] + torch.tensor([[0.0, 1e-3]])).tolist() == [-1]
    one = KnownInputs(x[:1])
    assert one.find(x[:2]).tolist() == [0, -1]


def test_copies_find_the_same_and_the_log_says_how_many(rng, caplog):
    x = worlds.normal(rng, 10, 2)
    known = copy.deepcopy(KnownInputs(x))
    with caplog.at_level(logging.DEBUG, "manygp"):
        assert known.find(torch.stack([x[2], x[2], x[1] + 1.0])).tolist() == [2, 2, -1]
    assert "1 of 2 inputs are inputs of the table" in caplog.text
