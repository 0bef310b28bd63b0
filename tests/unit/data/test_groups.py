import numpy as np
import pytest

from manygp.data import Cells, Grid, Grouping, GroupPlan, Scaling
from manygp.data.groups import distinct_inputs, group_cells


@pytest.mark.parametrize("size", [1, 5, 32, 500])
def test_every_cell_is_in_one_group(rng, size):
    grouping = group_cells(rng.standard_normal((200, 3)), size, 4, rng)
    assert sorted(grouping.cell) == list(range(200))
    sizes = np.diff(grouping.start)
    assert sizes.max() <= size
    # All but a few groups are full.
    assert len(grouping) <= -(-200 // size) + 1


def test_groups_are_conditioned_on_the_nearest_cells_before_them(rng):
    z = rng.uniform(size=(300, 2))
    grouping = group_cells(z, 4, 6, rng)
    before = np.zeros(0, dtype=int)
    for g in range(len(grouping)):
        own, given = grouping.cell[grouping.start[g] : grouping.start[g + 1]], grouping.given[g]
        given = given[given >= 0]
        assert set(given) <= set(before)
        assert len(set(given)) == len(given) == min(6, len(before))
        if len(before) > 60:
            distance = np.linalg.norm(z[before][:, None] - z[own], axis=-1).min(1)
            near = np.linalg.norm(z[given][:, None] - z[own], axis=-1).min(1)
            assert near.mean() <= 1.2 * np.sort(distance)[:6].mean()
        before = np.concatenate([before, own])


def test_members_are_conditioning_sets_and_cells():
    grouping = Grouping(np.array([3, 1, 0]), np.array([0, 2, 3]), np.array([[-1, -1], [3, 1]]))
    np.testing.assert_array_equal(grouping.members(np.array([0, 1])), [[-1, -1, 3, 1], [3, 1, 0, -1]])
    assert len(grouping) == 2


def test_a_batch_counts_only_the_cells_of_its_groups(rng):
    Y = rng.standard_normal((12, 3))
    Y[::2, 1] = np.nan
    table = Grid(np.arange(12.0)[:, None], Y)
    plan = GroupPlan(table, Scaling.fit(table, inputs=False, outputs="none"), 8, 3, 2, rng)
    plan.arrange(table.cells(plan.places)[0][:, None].astype(float))
    batches = list(plan.epoch(rng))
    assert len(batches) == len(plan) > 1
    total = np.zeros(3)
    for batch in batches:
        own = batch.members[:, batch.num_given :]
        total[batch.outputs] += batch.output_weight / len(plan)
        assert batch.members.max() == len(batch.y) - 1
        np.testing.assert_array_equal(batch.y, Y[batch.row, batch.outputs[batch.column]])
        assert (own >= 0).sum() > 0
    np.testing.assert_allclose(total, 1.0)


def test_cells_with_one_input_share_its_number():
    cells = Cells(np.array([[1.0], [2.0], [1.0]]), np.array([0, 0, 1]), np.zeros(3))
    number = distinct_inputs(cells)
    assert number[0] == number[2] != number[1]
    np.testing.assert_array_equal(distinct_inputs(Grid(np.zeros((2, 1)), np.zeros((2, 2)))), [0, 1])
