"""With Z at all embedded cells and the optimal q(u), the sparse GP is the exact GP: evidence and predictions."""

import pytest
import torch

from ..tolerances import EXACT_GP, assert_close
from . import worlds
from .registry import EMBEDDINGS, GAUSSIAN_LIKELIHOODS, KERNELS


def exact_model(rng, **parts):
    """A model with Z at the embedded cells of a table, after one natural step of rate 1 on the full batch."""
    table = worlds.random_grid(rng)
    batch = worlds.whole_batch(table)
    model = worlds.random_model(rng, num_outputs=table.num_outputs, **parts)
    outputs = batch.outputs[batch.column]
    e = worlds.point_embeddings(model, batch.x, outputs)
    worlds.set_points(model, e)
    model.gp.jitter = 0.0
    terms = model.natural_elbo(batch, worlds.generator(), rate=1.0)
    return model, batch, e, worlds.noise_of(model, outputs), terms


PARTS = [{"kernel": kernel, "embedding": embedding} for kernel in KERNELS for embedding in EMBEDDINGS]
PARTS += [{"likelihood": likelihood} for likelihood in GAUSSIAN_LIKELIHOODS]
PARTS += [{"trend": True}]


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: ", ".join(map(str, parts.values())))
def test_the_bound_is_the_log_evidence(rng, parts):
    model, batch, e, noise, terms = exact_model(rng, **parts)
    y = batch.y - worlds.beside(model, batch.x, batch.outputs[batch.column])
    evidence = worlds.log_evidence(model.gp.kernel, e, y, noise)
    assert_close(terms.expected_log_lik - terms.kl_u, evidence, EXACT_GP)


@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: ", ".join(map(str, parts.values())))
def test_predictions_are_those_of_the_exact_gp(rng, parts):
    model, batch, e, noise, _ = exact_model(rng, **parts)
    x, outputs = worlds.normal(rng, 20, 2), torch.as_tensor(rng.integers(4, size=20))
    mean, variance = model.predictor(num_samples=3, seed=0)(x, outputs)
    new = worlds.point_embeddings(model, x, outputs)
    y = batch.y - worlds.beside(model, batch.x, batch.outputs[batch.column])
    exact_mean, exact_variance = worlds.exact_prediction(model.gp.kernel, e, y, noise, new)
    exact_mean = exact_mean + worlds.beside(model, x, outputs)
    # Without variance of the latents all components of the mixture are the same.
    assert_close(mean, exact_mean.expand(3, -1), EXACT_GP)
    assert_close(variance, exact_variance.expand(3, -1), EXACT_GP)
