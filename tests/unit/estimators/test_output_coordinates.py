"""Outputs with coordinates: how they help each other, and outputs that were not in the fit."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch

import manygp
from manygp import DataError, SettingError
from manygp.data import Grid, Scaling, choose_rank
from manygp.data.coordinates import place_outputs
from manygp.models.coordinates import choose_placed_dim, refresh_prior

from ...tolerances import PREDICTION, assert_close
from .conftest import TINY, X, places, waves


@pytest.fixture(scope="module")
def placed(field):
    """A model that was told where its outputs are, and one of them has no observation."""
    S, Y = field
    Y = Y.copy()
    Y[:, 7] = np.nan
    with pytest.warns(UserWarning, match="no observed cell"):
        return manygp.TLVMOGP(**TINY | {"epochs": 8, "num_inducing": 40}).fit(X, Y, output_coordinates=S)


def test_new_places_are_predicted_from_their_neighbours(placed, rng):
    S = places(rng, 20)
    dist = placed.predict_new_outputs(X, output_coordinates=S)
    truth = waves(S)
    assert np.mean((dist.mean - truth) ** 2) < 0.05 * truth.var()
    assert dist.score(truth)["coverage90"] > 0.8


def test_places_tell_how_many_dimensions_there_are(rng):
    """Twelve faint patterns are below the noise of a single output, and each is smooth in space."""
    S, X = rng.uniform(0.0, 1.0, (400, 1)), np.arange(20.0)[:, None]
    patterns = np.column_stack([np.cos(np.pi * k * S[:, 0]) for k in range(12)])
    Y = rng.standard_normal((20, 12)) @ np.diag([3.0, 2.0] + [0.3] * 10) @ patterns.T
    table = Grid(X, Y + rng.standard_normal(Y.shape))
    scaling = Scaling.fit(table, outputs="global")
    assert choose_rank(table, scaling).rank <= 4
    table.coordinates = place_outputs(S, range(400), "flat")
    assert choose_placed_dim(table, scaling, np.random.default_rng(0)) >= 6


def test_a_place_unlike_all_others_does_not_say_how_many_dimensions_there_are(rng):
    """Faint patterns that most outputs share count, though a few outputs have far larger errors of their own."""
    S, X = rng.uniform(0.0, 1.0, (400, 1)), np.arange(20.0)[:, None]
    patterns = np.column_stack([np.cos(np.pi * k * S[:, 0]) for k in range(8)])
    Y = rng.standard_normal((20, 8)) @ np.diag([1.0] * 2 + [0.01] * 6) @ patterns.T
    Y[:, ::40] += rng.standard_normal((20, 10))
    table = Grid(X, Y)
    table.coordinates = place_outputs(S, range(400), "flat")
    assert choose_placed_dim(table, Scaling.fit(table, outputs="global"), np.random.default_rng(0)) >= 8


def test_a_prior_that_is_renewed_without_news_stays_as_it_is(placed):
    """Outputs are not drawn to their neighbours twice."""
    model, empty = copy.deepcopy(placed.model_), torch.tensor([7])
    for _ in range(2):
        refresh_prior(model, empty, 0)
        found = model.latents.prior_mean.clone(), model.latents.local_variance.clone(), model.latents.mean.clone()
    refresh_prior(model, empty, 0)
    for before, after in zip(
        found, (model.latents.prior_mean, model.latents.local_variance, model.latents.mean), strict=True
    ):
        assert_close(before, after.detach(), tolerances=PREDICTION)


@pytest.fixture(scope="module")
def still():
    """A field without noise, whose faint patterns are 100 times smaller than the first, at known and at new places."""
    rng = np.random.default_rng(5)
    S = rng.uniform(0.0, 1.0, (300, 1))
    patterns = np.column_stack([np.cos(np.pi * k * S[:, 0]) for k in range(1, 7)])
    Y = rng.standard_normal((12, 6)) @ np.diag([1.0, 0.3, 0.1, 0.03, 0.01, 0.01]) @ patterns.T
    return S, Y, np.arange(300) < 200


def test_where_nothing_is_noise_faint_patterns_are_predicted(still, tmp_path):
    """Training must not lose what the start knows, however coarse its steps are."""
    S, Y, known = still
    model = manygp.TLVMOGP(device="cpu", progress=False, epochs=1, learning_rate=0.5)
    model.fit(X, Y[:, known], output_coordinates=S[known])
    scores = model.predict_new_outputs(X, output_coordinates=S[~known]).score(Y[:, ~known])
    assert scores["mse"] < (0.001 * Y.std()) ** 2
    assert scores["coverage90"] > 0.8
    assert model.history_.stop_reason == "start"
    # Jitter is no more than the noise, and a loaded model has the same.
    assert model.model_.gp.jitter <= 1e-9
    model.save(tmp_path / "model")
    assert np.array_equal(manygp.load(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize("p", [1, 3, 30])
def test_places_of_few_outputs_or_empty_tables_ask_for_little(p, rng):
    Y = np.full((400, p), np.nan)
    Y[0] = rng.standard_normal(p)
    table = Grid(np.arange(400.0)[:, None], Y)
    table.coordinates = place_outputs(rng.uniform(size=(p, 2)), range(p), "flat")
    assert choose_placed_dim(table, Scaling.fit(table, outputs="global"), rng) == 1


def test_an_output_without_observations_is_predicted_from_its_neighbours(placed, field):
    truth = waves(field[0][7:8])
    assert np.mean((placed.predict(X, outputs=[7]) - truth) ** 2) < 0.1 * waves(field[0]).var()


def test_far_from_all_others_little_is_known(placed, field):
    near, far = field[0][:3], field[0][:3] + np.array([0.0, 100.0])
    variances = [placed.predict_new_outputs(X, output_coordinates=S).variance.mean() for S in (near, far)]
    assert variances[1] > 4.0 * variances[0]


def test_coordinates_and_observations_together(placed, rng):
    """Two values and a place tell more than either."""
    S = places(rng, 10)
    truth = waves(S)
    given = np.where(np.arange(12)[:, None] % 6 == 3, truth, np.nan)
    adapted = placed.adapt(X, given, output_coordinates=S)
    new = list(range(40, 50))
    prior = placed.predict_new_outputs(X, output_coordinates=S).score(truth)["mse"]
    assert adapted.evaluate(X, truth, outputs=new)["mse"] < prior
    again = adapted.predict_new_outputs(X, output_coordinates=S)
    assert again.score(truth)["mse"] < prior
    with pytest.raises(SettingError, match="tells outputs apart by coordinates"):
        placed.adapt(X, given)


def test_models_with_coordinates_are_saved(placed, rng, tmp_path):
    S = places(rng, 3)
    placed.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model")
    ours, theirs = (model.predict_new_outputs(X, output_coordinates=S) for model in (loaded, placed))
    assert np.array_equal(ours.mean, theirs.mean)
    assert np.array_equal(ours.variance, theirs.variance)


def test_counts_have_levels_by_place(rng):
    S = places(rng, 60)
    rate = np.exp(1.0 + waves(S) + (S[:, 0] - 1000.0) / 50.0)
    model = manygp.TLVMOGP(**TINY | {"epochs": 5, "num_inducing": 30}, likelihood="poisson")
    model.fit(X, rng.poisson(rate[:, :50]), output_coordinates=pd.DataFrame(S[:50]))
    mean = model.predict_new_outputs(X, output_coordinates=S[50:]).mean
    assert np.corrcoef(np.log(mean.mean(0)), np.log(rate[:, 50:].mean(0)))[0, 1] > 0.8


def test_a_list_of_cells_may_have_coordinates(rng):
    S = places(rng, 12)
    x, which = rng.uniform(size=(150, 1)), rng.integers(12, size=150)
    y = np.sin(4.0 * x[:, 0]) * (S[which, 0] - 1000.0) / 100.0
    model = manygp.TLVMOGP(**TINY).fit_cells(x, which, y, output_names=range(12), output_coordinates=S)
    assert np.isfinite(model.predict_new_outputs(X, output_coordinates=S[:2]).mean).all()


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"preset": "paper"}, "preset='paper' does not go with"),
        ({"standardize": "output"}, "standardize='output' does not go with"),
        ({"latent_prior_mean": "pca"}, "latent_prior_mean='pca' does not go with"),
        ({"coordinate_system": "cube"}, "coordinate_system='cube' is unknown"),
    ],
)
def test_settings_that_do_not_go_with_coordinates(field, settings, match):
    with pytest.raises(SettingError, match=match):
        manygp.TLVMOGP(**TINY | settings).fit(X, field[1], output_coordinates=field[0])


def test_what_coordinates_are_refused(placed, free, field):
    S, Y = field
    with pytest.raises(DataError, match="output_coordinates has 3 rows, but there are 40 outputs"):
        manygp.TLVMOGP(**TINY).fit(X, Y, output_coordinates=S[:3])
    with pytest.raises(DataError, match="output_coordinates has 1 columns, but the model was fitted with 2"):
        placed.predict_new_outputs(X, output_coordinates=S[:3, :1])
    with pytest.raises(SettingError, match="fitted without output_coordinates"):
        free.predict_new_outputs(X, output_coordinates=S)
    with pytest.raises(SettingError, match="give output_coordinates or latent_mean"):
        placed.predict_new_outputs(X, output_coordinates=S, latent_mean=S)
    with pytest.raises(SettingError, match="SVLMC takes no output_coordinates"):
        manygp.SVLMC().fit(X, Y, output_coordinates=S)
