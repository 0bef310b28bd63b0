"""The model as a module: embeddings in units, predictive components, parameters by rows."""

from dataclasses import replace

import torch

from manygp.models import Predictor, TransformedLatentModel

from ...laws import worlds
from ...tolerances import PREDICTION, assert_close


def test_pairs_are_divided_by_their_units_before_the_network(rng):
    model = worlds.random_model(rng, embedding="identity")
    x, h = worlds.normal(rng, 5, 2), worlds.normal(rng, 5, 2)
    assert_close(model.embed(x, h), torch.cat([x, h], -1) / model.units)
    assert model.embed(x.float(), h).dtype == torch.float32


def test_components_are_marginals_at_draws_of_the_latents(rng):
    model = worlds.random_model(rng, latent_posterior="full")
    x, outputs = worlds.normal(rng, 6, 2), torch.tensor([3, 1, 1, 0, 3, 2])
    predictor = model.predictor(num_samples=4, seed=5)
    assert isinstance(predictor, Predictor)
    mean, variance = predictor(x, outputs)
    assert mean.shape == variance.shape == (4, 6)
    h = model.latents.sample(torch.arange(4), 4, 5)
    with torch.no_grad():
        conditional = model.gp.conditional()
        for s in range(4):
            expected_mean, expected_variance = conditional(model.embed(x, h[s][outputs]))
            assert_close(mean[s], expected_mean, PREDICTION)
            assert_close(variance[s], expected_variance, PREDICTION)


def test_all_cells_of_an_output_share_a_draw(rng):
    """Within one component of the mixture an output is one function."""
    model = worlds.random_model(rng, latent_posterior="full")
    x = worlds.normal(rng, 1, 2).expand(5, -1)
    mean, _ = model.predictor(3, 0)(x, torch.full((5,), 2))
    assert_close(mean, mean[:, :1].expand(-1, 5), PREDICTION)
    assert float(mean[:, 0].std()) > 0


def test_predictions_leave_no_graph(rng):
    model = worlds.random_model(rng)
    mean, variance = model.predictor(2, 0)(worlds.normal(rng, 3, 2), torch.zeros(3, dtype=torch.int64))
    assert not mean.requires_grad
    assert not variance.requires_grad


def test_rows_are_the_latents(rng):
    model = worlds.random_model(rng, latent_posterior="full")
    assert isinstance(model, TransformedLatentModel)
    assert [id(p) for p in model.row_parameters()] == [id(p) for p in model.latents.parameters()]


def test_the_bound_does_not_depend_on_what_was_called_before(rng):
    """No hidden caches: predictions and natural steps on other models leave it alone."""
    model = worlds.random_model(rng, latent_posterior="full")
    batch = worlds.whole_batch(worlds.random_grid(rng))
    first = model.elbo(batch, worlds.generator()).bound
    model.predictor(2, 0)(batch.x, batch.outputs[batch.column])
    model.elbo(worlds.whole_batch(worlds.random_grid(rng)), worlds.generator(3)).bound.backward()
    assert torch.equal(model.elbo(batch, worlds.generator()).bound, first)


def test_a_natural_step_is_followed_by_the_bound_at_the_new_q(rng):
    model = worlds.random_model(rng)
    batch = worlds.whole_batch(worlds.random_grid(rng))
    stepped = model.natural_elbo(batch, worlds.generator(), 0.4)
    assert_close(stepped.bound, model.elbo(batch, worlds.generator()).bound)


def test_cell_by_cell_the_bound_is_that_of_the_old_q(rng):
    """The step and the bound share their products; the step goes towards the target of the same q."""
    model, batch = worlds.random_model(rng, likelihood="poisson"), worlds.whole_batch(worlds.random_grid(rng))
    batch = replace(batch, y=batch.y.abs().round())
    outputs = batch.outputs[batch.column]
    e = model.embed(batch.x, model.latents.rsample(batch.outputs, batch.column, worlds.generator()))
    evidence = model.gp.evidence(e, batch.y, outputs, model.likelihood)
    _, precision = evidence.natural_target(model.gp.posterior, batch.cell_weight)
    before, old = model.elbo(batch, worlds.generator()).bound, model.gp.posterior.precision.clone()
    stepped = model.natural_elbo(batch, worlds.generator(), 0.01)
    assert_close(stepped.bound, before)
    assert_close(model.gp.posterior.precision, 0.99 * old + 0.01 * precision)
    assert model.elbo(batch, worlds.generator()).bound > before


def test_one_component_is_the_mixture_where_f_is_linear_in_the_latents(rng, monkeypatch):
    """Narrow q(h): what is not linear is nothing, and moments of the mixture are those of the linear component."""
    model = worlds.random_model(rng, latent_posterior="full", trend=True)
    x, outputs = worlds.normal(rng, 6, 2), torch.tensor([3, 1, 1, 0, 3, 2])
    assert model.nonlinearity(x, outputs, 16, 0).max() > 1e-3
    wide = model.latents.factor
    monkeypatch.setattr(model.latents, "factor", lambda which: 0.01 * wide(which))
    assert model.nonlinearity(x, outputs, 16, 0).max() < 1e-4
    mean, variance = model.linear_predictor()(x, outputs)
    means, variances = model.predictor(20_000, 0)(x, outputs)
    assert torch.allclose(mean[0], means.mean(0), rtol=0.0, atol=1e-4)
    assert torch.allclose(variance[0] - variances.mean(0), means.var(0), rtol=0.1, atol=1e-6)
