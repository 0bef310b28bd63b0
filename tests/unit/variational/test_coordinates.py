"""A GP over coordinates: neighbours against a dense GP, parameters by evidence, gaps and degenerate places."""

import numpy as np
import pytest
import torch

from manygp.data.coordinates import CoordinateMap
from manygp.variational import CoordinatePrior, Latents

from ...tolerances import assert_close


def field_at(S, columns=2, system="flat"):
    coordinates = CoordinateMap.fit(S, system)
    prior = CoordinatePrior(coordinates, len(S), columns)
    prior.features.copy_(torch.as_tensor(coordinates.features(S)))
    return prior


def matern32(a, b, length):
    t = np.sqrt(3.0) * np.linalg.norm(a[:, None] - b[None], axis=-1) / length
    return (1.0 + t) * np.exp(-t)


def dense_kriging(R, r, y, nugget, variance):
    """Ordinary kriging by the textbook: weights from the system with a Lagrange multiplier."""
    n = len(y)
    system = np.block([[R, np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    solution = np.linalg.solve(system, np.append(r, 1.0))
    return solution[:n] @ y, variance * (1.0 + nugget - solution @ np.append(r, 1.0))


def test_with_few_outputs_it_is_ordinary_kriging(rng):
    S, new = rng.standard_normal((20, 2)), rng.standard_normal((3, 2))
    prior = field_at(S, 1)
    nugget, noise = 0.2, rng.uniform(0.1, 1.0, 20)
    prior.kernels[:] = torch.tensor([1.5, 0.7, nugget], dtype=torch.float64)
    prior.parameters_of[1], prior.parameters_of[2] = 2.0, 1e9
    y = rng.standard_normal(20)
    features = prior.map.features(new)
    mean, variance = prior.conditional(
        torch.as_tensor(y)[:, None], torch.as_tensor(noise)[:, None], torch.as_tensor(features)
    )
    known = prior.features.numpy()
    R = matern32(known, known, 0.7) + np.diag(nugget + noise / 2.0)
    for i in range(3):
        expected = dense_kriging(R, matern32(known, features[i : i + 1], 0.7)[:, 0], y, nugget, 2.0)
        assert_close([mean[i, 0], variance[i, 0]], expected)


def test_without_new_places_every_output_is_predicted_from_the_others(rng):
    S, values = rng.standard_normal((12, 2)), torch.as_tensor(rng.standard_normal((12, 2)))
    prior, noise = field_at(S), torch.full((12, 2), 0.1, dtype=torch.float64)
    mean, variance = prior.conditional(values, noise)
    rest = field_at(S, 2)
    rest.features = prior.features[1:]
    expected = rest.conditional(values[1:], noise[1:], prior.features[:1])
    assert_close(mean[0], expected[0][0])
    assert_close(variance[0], expected[1][0])


def test_parameters_are_found_by_evidence(rng):
    """A smooth column, a rough one and mere noise, each told for what it is; calibrated at new places."""
    S = rng.uniform(-1.0, 1.0, (500, 2))
    prior = field_at(S, 3)
    x = prior.features.numpy()
    root = np.linalg.cholesky(matern32(x, x, 1.0) + 1e-9 * np.eye(500))
    rough = np.linalg.cholesky(np.exp(-np.linalg.norm(x[:, None] - x[None], axis=-1) / 1.0))
    values = np.column_stack([3.0 * root @ rng.standard_normal(500), rough @ rng.standard_normal(500)])
    values = torch.as_tensor(np.column_stack([values, rng.standard_normal(500)]))
    prior.learn(values[:], torch.zeros_like(values), 0)
    # Averages over kernels by their shares, (column,)
    smoothness, _, nugget = (prior.kernels.T.unsqueeze(-1) * prior.parameters_of[0]).sum(1)
    assert smoothness[0] > 1.2 > 0.8 > smoothness[1]
    assert nugget[2] > 10.0 * nugget[:2].max()
    mean, variance = prior.conditional(values, torch.zeros_like(values))
    z2 = ((values - mean).square() / variance).mean(0)
    assert ((z2 > 0.7) & (z2 < 1.4)).all()
    error = (values - mean).square().mean(0) / values.var(0)
    assert error[0] < 0.02
    assert 0.8 < error[2] < 1.3


@pytest.fixture(scope="module")
def coast():
    """Places of which those to the left have a smooth field, and those far to the right mere noise."""
    rng = np.random.default_rng(2)
    S, is_left = rng.uniform(-1.0, 1.0, (200, 2)), np.arange(200) < 100
    S[~is_left] += 5.0
    prior = field_at(S, 1)
    x = prior.features.numpy()
    smooth = np.linalg.cholesky(matern32(x, x, 1.0) + 1e-9 * np.eye(200)) @ rng.standard_normal(200)
    values = np.where(is_left, smooth, 0.1 * rng.standard_normal(200))
    return prior, torch.as_tensor(values)[:, None], torch.as_tensor(is_left)


def test_regions_have_kernels_of_their_own(coast):
    prior, values, is_left = coast
    exact = torch.zeros_like(values)
    prior.learn(values, exact, 0)
    mean, variance = prior.conditional(values, exact)
    prior.learn(values, exact, 0, num_kernels=1)
    single, _ = prior.conditional(values, exact)
    for side in (is_left, ~is_left):
        assert (values - mean)[side].square().mean() < (values - single)[side].square().mean()
        z2 = ((values - mean).square() / variance)[side].mean()
        assert 0.5 < z2 < 2.0


def test_errors_that_all_outputs_have_count_once(coast, rng):
    """Nuggets are found from values that have them."""
    prior, values, _ = coast
    prior.learn(values, torch.zeros_like(values), 0)
    expected = prior.conditional(values, torch.zeros_like(values))
    noise = torch.full_like(values, 0.05)
    prior.learn(values, noise, 0)
    for found, known in zip(prior.conditional(values, noise), expected, strict=True):
        assert_close(found, known)
    noise[0] = 100.0
    near = (prior.features[1:] - prior.features[0]).norm(dim=-1).argmin() + 1
    assert prior.conditional(values, noise)[1][near] > expected[1][near]


def test_where_nothing_varies_nothing_is_learned(rng):
    """Neighbourhoods of equal values must not make all variances vanish."""
    S = rng.uniform(-1.0, 1.0, (200, 2))
    prior, values = field_at(S, 1), torch.as_tensor(np.sin(3.0 * S[:, :1]) * (S[:, :1] > 0.0))
    noise = torch.full_like(values, 1e-6)
    prior.learn(values, noise, 0)
    noise[::2] = 1e-4
    mean, _ = prior.conditional(values, noise)
    assert (values - mean).square().mean() < 1e-3 * values.var()


def test_tails_tell_how_unlike_their_neighbours_outputs_are(rng):
    prior, exact = field_at(rng.uniform(-1.0, 1.0, (3000, 2)), 4), torch.zeros(3000, 4, dtype=torch.float64)
    z = torch.as_tensor(rng.standard_normal((3000, 4)))
    stretch = torch.as_tensor(np.sqrt(3.0 / rng.chisquare(3.0, (3000, 1))))
    for widths, scale, freedom in ((1.0, 1.0, 1e4), (0.5 * stretch, 0.25, 3.0)):
        prior.learn_tails(widths * z, exact, torch.zeros_like(z), torch.ones_like(z), 4)
        assert prior.freedom == freedom
        assert abs(prior.tails[1, 0] / scale - 1.0) < 0.1


def test_tails_depend_on_how_far_the_nearest_output_is(rng):
    """Variances that are four times too large for neighbours, and right for those farther off."""
    prior = field_at(rng.uniform(-1.0, 1.0, (800, 2)), 1)
    values = torch.as_tensor(rng.standard_normal((800, 1)))
    exact = torch.zeros_like(values)
    prior.learn(values, exact, 0, freedoms=(1e4,), num_kernels=1)
    mean, variance = prior.conditional(values, exact)
    prior.learn_tails(values, exact, mean, 4.0 * variance, 1)
    distances, scales = prior.tails
    assert (distances.diff() > 0.0).all()
    assert abs(scales[0] / 0.25 - 1.0) < 0.15
    assert ((scales[1:] - 1.0).abs() < 0.2).all()
    far = prior.features[:1] + 10.0
    assert_close(prior.tail_scales(torch.cat([prior.features[:1], far])), scales[[0, -1]])


def test_features_that_do_not_matter_lose_their_weight(rng):
    S = rng.uniform(-1.0, 1.0, (400, 2))
    prior = field_at(S, 1)
    prior.learn(torch.as_tensor(np.sin(5.0 * S[:, :1])), torch.zeros(400, 1, dtype=torch.float64), 0)
    assert prior.weight[1] < 0.3 * prior.weight[0]


def test_on_a_sphere_things_may_reach_farther_east_than_north(rng):
    S = np.column_stack([np.degrees(np.arcsin(rng.uniform(-1.0, 1.0, 600))), rng.uniform(0.0, 360.0, 600)])
    prior = field_at(S, 1, "sphere")
    values = torch.sin(8.0 * prior.features[:, 2:]) + prior.features[:, :1]
    prior.learn(values, torch.zeros_like(values), 0)
    assert prior.weight[2] > 1.4
    assert prior.weight[0] == prior.weight[1] == 1.0


def test_what_is_not_known_is_not_used(rng):
    S = rng.uniform(-1.0, 1.0, (60, 2))
    prior, values = field_at(S, 1), torch.as_tensor(S[:, :1].copy())
    noise = torch.full_like(values, 1e-4)
    values[::2], noise[::2] = 1e3, 1e12
    mean, _ = prior.conditional(values, noise)
    assert (mean[::2] - torch.as_tensor(S[::2, :1])).abs().max() < 0.5


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_places_that_coincide_and_few_of_them(count):
    prior = field_at(np.ones((count, 2)), 2)
    values = torch.arange(2.0 * count, dtype=torch.float64).view(count, 2)
    prior.learn(values, torch.zeros_like(values), 0)
    for features in (None, prior.features[:1]):
        mean, variance = prior.conditional(values, torch.zeros_like(values), features)
        assert torch.isfinite(mean).all()
        assert (variance > 0).all()


def test_a_prior_of_each_output_has_its_kl(rng):
    latents = Latents(3, 2, "full", relative=True)
    mean, variance = torch.as_tensor(rng.standard_normal((3, 2))), torch.as_tensor(rng.uniform(0.1, 2.0, (3, 2)))
    latents.set_local_prior(mean, variance)
    with torch.no_grad():
        latents.mean.add_(0.3)
        latents.scale.add_(0.2)
    outputs = torch.arange(3)
    L = latents.factor(outputs)
    expected = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(latents.mean, scale_tril=L),
        torch.distributions.MultivariateNormal(mean, variance.diag_embed()),
    )
    assert_close(latents.kl(outputs), expected)
    latents.set_to_prior(outputs)
    assert_close(latents.kl(outputs), torch.zeros(3))
    point = Latents(3, 2, "point")
    point.set_local_prior(mean, variance)
    expected = -torch.distributions.Normal(mean, variance.sqrt()).log_prob(point.mean).sum(-1)
    assert_close(point.kl(outputs), expected)
