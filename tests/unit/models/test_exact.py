"""Exact GPs of many outputs at once are one GP for each, whatever was observed and whatever is shared."""

import numpy as np
import pytest
import torch

from manygp.data import Cells, Grid, Scaling
from manygp.kernels import make_kernel
from manygp.likelihoods import Gaussian
from manygp.models import exact
from manygp.models.exact import Columns, ExactBatch, ExactPredictor, log_evidence, stack_columns
from manygp.variational import KernelBatch

from ...laws import worlds
from ...laws.registry import GIVEN_KERNELS
from ...tolerances import PREDICTION, assert_close


def random_model(rng, table, shared=False, kernel="rbf"):
    p = table.num_outputs
    kernels = worlds.shake(KernelBatch(kernel, table.num_features, 1 if shared else p), rng, 0.3)
    likelihood = worlds.shake(Gaussian(p, noise=0.3, per_output=not shared), rng)
    return ExactBatch(kernels, likelihood, stack_columns(table, worlds.raw(table)))


def kernel_of(model, output, name="rbf"):
    kernel = make_kernel(name, model.x.shape[1])
    with torch.no_grad():
        for key, parameter in kernel.named_parameters():
            parameter.copy_(dict(model.kernels.kernel.named_parameters())[key][0 if model.is_shared else output])
    return kernel


def noise_of(model, output):
    return model.likelihood.noise.detach()[0 if model.is_shared else output]


def observations(table, output):
    seen = ~np.isnan(table.Y[:, output])
    return torch.as_tensor(table.X[seen]), torch.as_tensor(table.Y[seen, output])


@pytest.fixture
def table(rng):
    """Gaps, two outputs with the same ones, one without a cell and one with all."""
    Y = worlds.random_grid(rng, 7, 6).Y.copy()
    Y[:, 3] = np.where(np.isnan(Y[:, 1]), np.nan, rng.standard_normal(7))
    Y[:, 4], Y[:, 5] = np.nan, rng.standard_normal(7)
    return Grid(rng.standard_normal((7, 2)), Y)


@pytest.mark.parametrize("chunk", [400_000, 30])
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "rational quadratic"])
def test_evidence_is_that_of_every_output(rng, table, monkeypatch, kernel, chunk):
    monkeypatch.setattr(exact, "_CHUNK_NUMBERS", chunk)
    given = GIVEN_KERNELS[kernel](2) if kernel in GIVEN_KERNELS else kernel
    model = random_model(rng, table, kernel=given)
    value = model.log_evidence(model.parameter_rows(), torch.arange(6))
    for p in (0, 1, 2, 3, 5):
        x, y = observations(table, p)
        assert_close(value[p], worlds.log_evidence(kernel_of(model, p, given), x, y, noise_of(model, p).expand(len(y))))
    assert value[4] == 0.0
    some = torch.tensor([1, 3, 5])
    assert_close(model.log_evidence(model.parameter_rows()[some], some), value[some])
    # The same parameters for all, where outputs with the same gaps share a factorisation.
    row = model.parameter_rows()[:1]
    assert_close(model.common_evidence(row), model.log_evidence(row.expand(6, -1), torch.arange(6)))


@pytest.mark.parametrize("chunk", [400_000, 30])
def test_a_shared_kernel_has_the_evidence_of_all_outputs(rng, table, monkeypatch, chunk):
    monkeypatch.setattr(exact, "_CHUNK_NUMBERS", chunk)
    model = random_model(rng, table, shared=True)
    expected = 0.0
    for p in (0, 1, 2, 3, 5):
        x, y = observations(table, p)
        expected += worlds.log_evidence(kernel_of(model, p), x, y, noise_of(model, p).expand(len(y)))
    assert_close(model.log_evidence(model.parameter_rows(), torch.tensor([0]))[0], expected)


@pytest.mark.parametrize("chunk", [400_000, 30])
@pytest.mark.parametrize("shared", [True, False])
def test_predictions_are_those_of_every_output(rng, table, monkeypatch, shared, chunk):
    monkeypatch.setattr(exact, "_CHUNK_NUMBERS", chunk)
    model = random_model(rng, table, shared)
    new = worlds.normal(rng, 4, 2)
    row, output = torch.tensor([0, 0, 0, 1, 1, 3, 2, 2, 0]), torch.tensor([5, 1, 3, 3, 0, 2, 4, 1, 1])
    predictor = model.predictor(1, 0)
    assert isinstance(predictor, ExactPredictor)
    mean, variance = predictor(new[row], output)
    assert mean.shape == variance.shape == (1, 9)
    for i, (n, p) in enumerate(zip(row.tolist(), output.tolist(), strict=True)):
        x, y = observations(table, p)
        noise = noise_of(model, p).expand(len(y))
        expected = worlds.exact_prediction(kernel_of(model, p), x, y, noise, new[n : n + 1])
        assert_close(mean[0, i], expected[0][0], PREDICTION)
        assert_close(variance[0, i], expected[1][0], PREDICTION)


def test_outputs_with_the_same_gaps_share_a_factorisation(rng, table, monkeypatch):
    sizes = []

    def counted(A, jitter=0.0):
        sizes.append(len(A))
        return torch.linalg.cholesky(A)

    monkeypatch.setattr(exact, "safe_cholesky", counted)
    model = random_model(rng, table, shared=True)
    model.log_evidence(model.parameter_rows(), torch.tensor([0]))
    assert sum(sizes) == 5
    complete = Grid(table.X, rng.standard_normal((7, 50)))
    sizes.clear()
    model = random_model(rng, complete, shared=True)
    model.log_evidence(model.parameter_rows(), torch.tensor([0]))
    model.predictor(1, 0)
    assert sizes == [1, 1]


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_of_the_evidence(rng, table, shared):
    model = random_model(rng, table, shared)
    rows = model.parameter_rows()
    which = torch.arange(len(rows))
    value, gradient = model.value_and_gradient(rows, which)
    assert_close(value, model.log_evidence(rows, which))
    step = 1e-6
    for k in range(rows.shape[1]):
        moved = torch.zeros_like(rows)
        moved[:, k] = step
        difference = model.log_evidence(rows + moved, which) - model.log_evidence(rows - moved, which)
        np.testing.assert_allclose(gradient[:, k], difference / (2 * step), rtol=1e-5, atol=1e-6)


def test_parameters_as_rows_and_back(rng, table):
    for shared in (True, False):
        model, other = random_model(rng, table, shared), random_model(rng, table, shared)
        other.set_parameter_rows(model.parameter_rows())
        ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_columns_of_a_grid_and_of_a_list_are_the_same(rng, table):
    scaling = Scaling.fit(table)
    columns = stack_columns(table, scaling)
    assert isinstance(columns, Columns)
    row, output = np.nonzero(~np.isnan(table.Y))
    cells = Cells(table.X[row], output, table.Y[row, output], table.output_names)
    listed = stack_columns(cells, scaling)
    assert torch.equal(columns.seen, listed.seen)
    assert torch.equal(columns.y, listed.y)
    assert torch.equal(columns.x[columns.index][columns.seen], listed.x[listed.index][listed.seen])
    assert columns.seen.sum(-1).tolist() == table.count_per_output().tolist()
    assert columns.group[1] == columns.group[3]
    assert len(columns.group.unique()) == 5
    assert len(listed.group.unique()) == 6


def test_evidence_of_several_columns(rng):
    K = torch.stack([worlds.positive_definite(rng, 4) for _ in range(2)])
    Y = worlds.normal(rng, 2, 4, 3)
    Y[1, :, 2] = 0.0
    value = log_evidence(K, Y, torch.tensor([3, 2]))
    constant = 2.0 * np.log(2.0 * np.pi)
    for i, count in enumerate((3, 2)):
        normal = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=torch.float64), K[i])
        assert_close(value[i], normal.log_prob(Y[i, :, :count].T).sum() + count * constant)
