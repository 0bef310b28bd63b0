import numpy as np
import pytest

from manygp.data.search import CellSearch


@pytest.mark.parametrize("d", [1, 2, 12])
def test_candidates_are_at_near_inputs_of_near_outputs(rng, d):
    x, h = rng.standard_normal((30, d)), rng.standard_normal((6, 2))
    row, output = np.nonzero(rng.uniform(size=(30, 6)) < 0.8)
    search = CellSearch(x, h, row, output, len(h))
    found = search.candidates(x[4:5], np.array([2]), h[2:3], num_inputs=3, num_outputs=2, num_own=2)[0]
    found = found[found >= 0]
    assert len(set(found)) == len(found)
    near_rows = np.argsort(((x - x[4]) ** 2).sum(1))[:3]
    near_outputs = np.argsort(((h - h[2]) ** 2).sum(1))[:2]
    wanted = {i for i in range(len(row)) if row[i] in near_rows and output[i] in near_outputs}
    assert wanted <= set(found)
    assert (output[found] == 2).sum() >= 2


def test_cells_on_both_sides_of_a_gap_are_found():
    x = np.arange(100.0)[:, None]
    kept = np.r_[0:40, 60:100]
    row = np.concatenate([kept, np.arange(100)])
    output = np.concatenate([np.zeros(80, dtype=int), np.ones(100, dtype=int)])
    search = CellSearch(x, np.array([[0.0], [1.0]]), row, output, 2)
    found = search.candidates(np.array([[50.0]]), np.array([0]), np.array([[0.0]]), 3, 2, 4)[0]
    own = row[found[(found >= 0)]][output[found[found >= 0]] == 0]
    assert set(own) == {38, 39, 60, 61}


def test_lists_of_cells_are_searched_output_by_output(rng):
    x = rng.uniform(size=(200, 2))
    output = rng.integers(4, size=200)
    search = CellSearch(x, np.arange(4.0)[:, None], np.arange(200), output, 4)
    found = search.candidates(x[:1], np.array([9]), np.array([[0.2]]), num_inputs=5, num_outputs=2, num_own=3)[0]
    found = found[found >= 0]
    assert len(found) == 10
    for p in (0, 1):
        own = np.flatnonzero(output == p)
        nearest = own[np.argsort(((x[own] - x[0]) ** 2).sum(1))[:5]]
        assert set(nearest) == set(found[output[found] == p])
