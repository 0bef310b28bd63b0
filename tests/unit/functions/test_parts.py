"""Numbers by name, random features, and a process that is known at points."""

import pytest
import torch

from manygp import keyed
from manygp.functions import At, Combination, Process, Spectrum, cell_keys, input_keys, normals
from manygp.kernels import cross_covariance, make_kernel, plain_covariance
from manygp.linalg import safe_cholesky, sparse_matrix, triangular_inverse
from manygp.models.joint.transformed import EmbeddingKernel
from manygp.quadrature import unit_frequencies
from manygp.variational import KernelBatch

KEYS, DRAWS = torch.arange(40), torch.arange(50)


def test_numbers_are_normal_and_go_by_name():
    found = normals(3, 1, KEYS, DRAWS, 5)
    assert found.shape == (40, 50, 5)
    assert abs(float(found.mean())) < 0.03
    assert abs(float(found.var()) - 1.0) < 0.05
    flat = found.reshape(40, -1)
    assert torch.corrcoef(flat).fill_diagonal_(0.0).abs().max() < 0.3
    torch.testing.assert_close(normals(3, 1, KEYS[[7, 2]], DRAWS[[4]], 5), found[[7, 2]][:, [4]])
    torch.testing.assert_close(normals(3, 1, KEYS, DRAWS, 2), found[..., :2])
    for other in (normals(4, 1, KEYS, DRAWS, 5), normals(3, 2, KEYS, DRAWS, 5)):
        assert abs(float(torch.corrcoef(torch.stack([other.flatten(), found.flatten()]))[0, 1])) < 0.05


def test_numbers_do_not_depend_on_what_is_made_together(monkeypatch):
    whole = normals(3, 1, KEYS, DRAWS, 5)
    monkeypatch.setattr(keyed, "_TOGETHER", 600)
    assert torch.equal(normals(3, 1, KEYS, DRAWS, 5), whole)
    assert normals(3, 1, KEYS[:0], DRAWS, 5).shape == (0, 50, 5)


def test_equal_inputs_have_equal_keys():
    x = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    keys = input_keys(x)
    assert keys[0] == keys[1] != keys[2]
    assert len(cell_keys(x, torch.tensor([0, 1, 0])).unique()) == 3


@pytest.mark.parametrize("num_latents", [0, 1])
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32"])
def test_features_are_the_kernel_on_average(name, num_latents, rng):
    kernel = make_kernel(name, 2, num_latents=num_latents)
    points = torch.as_tensor(rng.standard_normal((6, 2)))
    with torch.no_grad():
        if num_latents:
            kernel.share = torch.tensor(0.3)
        K = cross_covariance(kernel, points, points)
        torch.testing.assert_close(plain_covariance(kernel, points, points), K, atol=1e-7, rtol=1e-6)
        found = []
        for seed in range(8):
            φ = Spectrum.of(kernel, 256, seed)(points)
            if not num_latents:
                torch.testing.assert_close(φ.square().sum(-1), K.diagonal())
            found.append(φ @ φ.T)
    assert (torch.stack(found).mean(0) - K).abs().max() < 0.1 * K.max()


def test_features_of_a_batch_are_those_of_each_kernel(rng):
    kernels = KernelBatch("rbf", 1, 3)
    kernels.rescale(torch.tensor([[0.5], [1.0], [2.0]]), torch.tensor([1.0, 2.0, 3.0]))
    x = torch.as_tensor(rng.uniform(size=(4, 1)))
    which = torch.tensor([2, 0])
    with torch.no_grad():
        φ = Spectrum.of_batch(kernels, which, 512, 0)(x.expand(2, 4, 1))
        K = kernels.covariance(kernels.rows(which), x, x)
    assert (φ @ φ.mT - K).abs().max() < 0.05


def test_a_process_is_met_where_it_is_known(rng):
    kernel, Z = make_kernel("rbf", 1), torch.linspace(0, 3, 5, dtype=torch.float64).unsqueeze(-1)
    prior = EmbeddingKernel(kernel)
    with torch.no_grad():
        Linv = triangular_inverse(safe_cholesky(prior(Z, Z), 1e-9))
        at = At(Process(prior, Z, Linv, torch.zeros(5).double(), spectrum=Spectrum.of(kernel, 64, 0)), Z)
        assert at.left_rows().abs().max() < 1e-4
        assert at.left().max() < 1e-6


def test_frequencies_have_the_spread_of_their_kernel():
    directions, uniform = unit_frequencies(256, 2, float("inf"), 0)
    assert abs(float(directions.var()) - 1.0) < 0.1
    assert 0.4 < float(uniform.mean()) < 0.6
    heavy, _ = unit_frequencies(256, 2, 0.5, 0)
    assert heavy.abs().max() > 10.0 > directions.abs().max()


def test_entries_of_a_sparse_matrix_add_up():
    A = sparse_matrix(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), torch.tensor([1.0, 2.0, 3.0]), (2, 2))
    torch.testing.assert_close(A.to_dense(), torch.tensor([[0.0, 3.0], [3.0, 0.0]]))


def test_lots_of_cells_are_combined_as_all_together(rng):
    index, weight = torch.as_tensor(rng.integers(9, size=(7, 3))), torch.as_tensor(rng.standard_normal((7, 3)))
    values = torch.as_tensor(rng.standard_normal((9, 4)))
    wanted = torch.stack([weight[i] @ values[index[i]] for i in range(7)])
    lots = [torch.tensor([4, 0, 6]), torch.tensor([1, 2, 3, 5])]
    torch.testing.assert_close(Combination(index, weight, 9).times(values), wanted)
    torch.testing.assert_close(Combination(index, weight, 9, lots).times(values), wanted)
