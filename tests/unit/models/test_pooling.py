"""Many problems say together from which prior their parameters were drawn."""

import numpy as np
import pytest
import torch

from manygp import IndGP
from manygp.models.pooling import pooled_prior

from ...laws import worlds


def quadratic_problems(rng, num_problems, spread, precision):
    """Log evidences −½ Σ_k h_k (θ_k − t_k)² with t drawn around the true parameters, which have a spread."""
    precision = torch.as_tensor(precision)
    truth = 1.0 + torch.as_tensor(spread) * worlds.normal(rng, num_problems, len(precision))
    top = truth + worlds.normal(rng, num_problems, len(precision)) / precision.sqrt()

    def evidence(rows, which):
        away = rows - top[which]
        return -0.5 * (precision * away.square()).sum(-1), -precision * away

    return evidence, top


def test_spread_is_what_chance_does_not_explain(rng):
    # The maxima of both parameters differ by about 0.5; the first for a reason, the second by chance.
    evidence, top = quadratic_problems(rng, 400, [0.5, 0.05], [100.0, 4.0])
    assert (top.std(0) > 0.45).all()
    center, spread = pooled_prior(evidence, top, torch.zeros(1, 2, dtype=torch.float64), 1.0)
    np.testing.assert_allclose(center, 1.0, atol=0.1)
    np.testing.assert_allclose(spread[0, 0], 0.5, rtol=0.1)
    # A variance of 0.25 is known to 0.018 from 400 values: 0.05² and twice that.
    assert spread[0, 1] < 0.2


def test_where_problems_say_nothing_or_are_few_the_prior_stays(rng):
    assumed = torch.zeros(1, 2, dtype=torch.float64)
    evidence, top = quadratic_problems(rng, 50, [0.5, 0.5], [100.0, 1e-9])
    rows = torch.stack([top[:, 0], torch.zeros(50, dtype=torch.float64)], -1)
    assert pooled_prior(evidence, rows, assumed, 0.7)[1][0, 1] == pytest.approx(0.7, rel=1e-3)
    evidence, top = quadratic_problems(rng, 2, [0.5, 0.5], [100.0, 100.0])
    center, spread = pooled_prior(evidence, top, assumed, 0.7)
    assert torch.equal(center, assumed)
    np.testing.assert_allclose(spread, 0.7)


def test_outputs_alike_but_for_their_noise(rng):
    """Draws of one GP, half of them measured badly: kernels are shared almost, noise is not."""
    X = np.linspace(0, 1, 40)[:, None]
    K = np.exp(-0.5 * (X - X.T) ** 2 / 0.15**2) + 1e-8 * np.eye(40)
    noise = np.where(np.arange(14) % 2, 0.05, 0.5)
    Y = np.linalg.cholesky(K) @ rng.standard_normal((40, 14)) + noise * rng.standard_normal((40, 14))
    model = IndGP(standardize=False, device="cpu", progress=False).fit(X, Y)
    assert np.log(model.outputscale_).std() < 0.1
    assert np.log(model.lengthscale_).std() < 0.1
    bad = noise > 0.1
    assert np.log(model.noise_[bad]).min() - np.log(model.noise_[~bad]).max() > 2.0


def test_problems_without_a_maximum_have_no_say(rng):
    evidence, top = quadratic_problems(rng, 40, [0.3, 0.3], [100.0, 100.0])

    def unbounded(rows, which):
        """The last problem wants its second parameter as small as can be."""
        value, gradient = evidence(rows, which)
        is_last = (which == 39).unsqueeze(-1) & torch.tensor([False, True])
        return value, torch.where(is_last, -25.0, gradient)

    rows = top.clone()
    rows[39, 1] = -15.0
    assumed = torch.zeros(1, 2, dtype=torch.float64)
    found, expected = pooled_prior(unbounded, rows, assumed, 0.5), pooled_prior(evidence, top[:39], assumed, 0.5)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-6)


def test_a_constant_output_is_no_trouble(rng):
    X = np.linspace(0, 1, 30)[:, None]
    Y = np.sin(6 * X + np.arange(6)) + 0.1 * rng.standard_normal((30, 6))
    Y[:, -1] = 3.0
    model = IndGP(device="cpu", progress=False).fit(X, Y)
    np.testing.assert_allclose(model.predict(X)[:, -1], 3.0, atol=1e-3)
