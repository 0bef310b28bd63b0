"""Cells laid out for batched products come back as they were."""

import torch

from manygp.variational.layout import Padding, distinct_inputs, grid_of_cells, pad_groups

from ...laws import worlds


def test_inputs_that_follow_each_other_are_one(rng):
    rows = worlds.normal(rng, 3, 2)
    at = torch.tensor([0, 0, 1, 1, 1, 2, 0])
    inputs, place = distinct_inputs(rows[at])
    assert place.tolist() == [0, 0, 1, 1, 1, 2, 3]
    assert torch.equal(inputs[place], rows[at])
    assert distinct_inputs(rows[:0])[0].shape == (0, 2)


def test_cells_are_places_of_the_grid_that_they_span(rng):
    x, outputs = worlds.normal(rng, 3, 2)[[0, 0, 1, 2]], torch.tensor([7, 4, 4, 7])
    inputs, distinct, cells = grid_of_cells(x, outputs)
    assert torch.equal(inputs[cells.row], x)
    assert torch.equal(distinct[cells.column], outputs)
    assert (cells.num_rows, cells.num_columns) == (3, 2)


def test_members_of_a_group_stand_in_its_row(rng):
    group = torch.tensor([2, 0, 2, 2, 0])
    padding = pad_groups(group, 4)
    assert isinstance(padding, Padding)
    assert (padding.size, padding.width) == (4, 3)
    padded = padding.pad(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert padded.tolist() == [[2, 5, 0], [0, 0, 0], [1, 3, 4], [0, 0, 0]]
    values = worlds.normal(rng, 5, 2)
    assert torch.equal(padding.take(padding.pad(values)), values)
    assert padding.pad(values).shape == (4, 3, 2)


def test_no_members_at_all():
    padding = pad_groups(torch.zeros(0, dtype=torch.int64), 3)
    assert padding.pad(torch.zeros(0, 2)).shape == (3, 0, 2)
    assert padding.take(torch.zeros(3, 0)).shape == (0,)
