"""Every likelihood in the estimator: fit, predict, score, save, and what is refused."""

import logging

import gpytorch
import numpy as np
import pytest
import torch
from scipy import stats

import manygp
from manygp import TLVMOGP, DataError, SettingError
from manygp.data import Grid, GridPlan
from manygp.data.exposure import size_factors
from manygp.estimators import ESTIMATORS
from manygp.likelihoods import LIKELIHOODS, NegativeBinomial
from manygp.variational import CellBatch

from ...tolerances import assert_close

TINY = {"latent_dim": 2, "num_inducing": 12, "epochs": 4, "num_samples": 4, "device": "cpu", "progress": False}
RNG = np.random.default_rng(0)
X = RNG.uniform(size=(30, 2))
RATE = np.exp(np.sin(4 * X[:, :1]) + RNG.normal(size=6))
EXPOSURE = np.exp(0.4 * RNG.normal(size=30))
COUNTS = RNG.poisson(RATE * EXPOSURE[:, None]).astype(float)
COUNTS[RNG.uniform(size=COUNTS.shape) < 0.1] = np.nan
LABELS = np.where(np.isnan(COUNTS), np.nan, COUNTS > 1)
REALS = np.log1p(COUNTS)
COUNT_NAMES = [name for name, kind in LIKELIHOODS.items() if kind.takes_exposure]
GIVEN = {
    "given object": (NegativeBinomial(6, dispersion=0.3), COUNTS),
    "given by GPyTorch": (gpytorch.likelihoods.BernoulliLikelihood(), LABELS),
}


def values_for(name):
    kind = LIKELIHOODS[name]
    return REALS if kind.is_affine else COUNTS if kind.takes_exposure else LABELS


CASES = {name: (name, values_for(name)) for name in LIKELIHOODS} | GIVEN


def tiny(likelihood, **settings):
    return TLVMOGP(**(TINY | settings), likelihood=likelihood)


@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("case", CASES)
def test_every_likelihood_works_from_fit_to_load(case, preset, tmp_path):
    likelihood, Y = CASES[case]
    model = tiny(likelihood, preset=preset).fit(X, Y)
    dist, scores = model.predict_dist(X), model.evaluate(X, Y)
    assert all(np.isfinite(value) for value in scores.values())
    assert np.isfinite(dist.mean).all()
    assert (dist.std > 0).all()
    lower, upper = dist.interval(0.9)
    assert (lower <= upper).all()
    if model.model_.likelihood.is_discrete:
        # A mass is at most one, and quantiles are whole.
        assert np.nanmax(dist.log_prob(Y)) <= 1e-9
        np.testing.assert_array_equal(upper, np.floor(upper))
        np.testing.assert_allclose(dist.zero_probability(), np.exp(dist.log_prob(np.zeros(Y.shape))), rtol=1e-6)
    modules = {} if isinstance(likelihood, str) else {"likelihood": likelihood}
    model.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model", **modules)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize(("Y", "chosen"), [(COUNTS, "negative-binomial"), (LABELS, "bernoulli"), (REALS, "gaussian")])
def test_auto_looks_at_the_values_and_says_what_it_chose(Y, chosen, caplog, tmp_path):
    with caplog.at_level(logging.INFO, logger="manygp"):
        model = tiny("auto").fit(X, Y)
    # Real values may have a noise of each output's own.
    assert model.likelihood_.endswith(chosen)
    assert f"chose '{chosen}'" in caplog.text
    model.save(tmp_path / "model")
    assert manygp.load(tmp_path / "model").likelihood_ == model.likelihood_


def test_lists_of_cells(tmp_path):
    row, output = np.nonzero(~np.isnan(COUNTS))
    scattered = X[row] + 1e-3 * RNG.normal(size=(len(row), 2))
    model = tiny("poisson").fit_cells(scattered, output, COUNTS[row, output])
    assert np.isfinite(model.predict_cells(scattered, output).log_prob(COUNTS[row, output])).all()


# -- hard data ---------------------------------------------------------------------------------------------------------


HARD = [(name, link, "float64") for name in COUNT_NAMES for link in ("exp", "softplus")]
HARD += [("zinb", "exp", "float32")]


@pytest.mark.parametrize(("name", "link", "dtype"), HARD)
def test_counts_of_all_sizes_and_outputs_of_zeros(name, link, dtype):
    """One output of zeros, one with 10⁵ among small counts, one without any value."""
    Y = COUNTS.copy()
    Y[:, 1], Y[3, 2], Y[:, 3] = 0.0, 1e5, np.nan
    with pytest.warns(UserWarning, match="no observed cell"):
        model = tiny(LIKELIHOODS[name](6, link=link), dtype=dtype, epochs=10).fit(X, Y)
    assert float(np.linalg.eigvalsh(model.model_.gp.posterior.precision.numpy()).min()) > 0.0
    assert np.isfinite(model.predict_dist(X).log_prob(np.nan_to_num(Y))).all()
    # Nothing is flung away on the way.
    assert min(model.history_["bound"]) >= 1.1 * model.history_["bound"][0]


def test_an_output_of_zeros_is_predicted_to_stay_so():
    Y = COUNTS.copy()
    Y[:, 1] = 0.0
    dist = tiny("poisson", epochs=20).fit(X, Y).predict_dist(X)
    assert dist.mean[:, 1].max() < 0.2
    assert (dist.zero_probability()[:, 1] > 0.8).all()


def test_one_output_and_labels_all_alike():
    assert np.isfinite(tiny("poisson", num_inducing=5).fit(X, COUNTS[:, 0]).predict(X)).all()
    assert tiny("bernoulli").fit(X, np.ones((30, 3))).predict(X).min() > 0.5


def test_counts_are_predicted_better_than_by_a_constant():
    rng = np.random.default_rng(1)
    x, exposure = rng.uniform(size=(100, 1)), np.exp(0.4 * rng.normal(size=100))
    f = np.sin(6 * x) * rng.normal(size=8) + np.cos(6 * x) * rng.normal(size=8)
    Y = rng.poisson(3.0 * np.exp(f) * exposure[:, None]).astype(float)
    hidden = rng.uniform(size=Y.shape) < 0.2
    train, test = np.where(hidden, np.nan, Y), np.where(hidden, Y, np.nan)
    model = tiny("poisson", num_inducing=25, epochs=30).fit(x, train, exposure=exposure)
    scores = model.evaluate(x, test, exposure=exposure)
    mean = exposure[:, None] * np.nansum(train, 0) / (exposure[:, None] * ~hidden).sum(0)
    assert scores["nll"] < -stats.poisson.logpmf(Y, mean)[hidden].mean() - 0.3
    # The truth can hardly be beaten.
    truth = 3.0 * np.exp(f) * exposure[:, None]
    assert scores["nll"] < -stats.poisson.logpmf(Y, truth)[hidden].mean() + 0.15
    assert 0.8 < scores["coverage90"] < 0.97


# -- exposure ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUNT_NAMES)
def test_a_mean_is_proportional_to_its_exposure(name):
    model = tiny(name).fit(X, COUNTS, exposure=EXPOSURE)
    one, two = model.predict(X), model.predict(X, exposure=np.full(30, 2.0))
    if name.startswith("z"):
        # A larger count also loses fewer of its zeros.
        assert (two > 2.0 * one).all()
    else:
        np.testing.assert_allclose(two, 2.0 * one, rtol=1e-6)
    np.testing.assert_array_equal(model.predict_dist(X, exposure=np.ones(30)).mean, one)
    f = model.predict_dist(X, observation_noise=False, exposure=EXPOSURE).mean
    np.testing.assert_array_equal(f, model.predict_dist(X, observation_noise=False).mean)


def test_doubling_every_exposure_halves_the_rates():
    once = tiny("poisson").fit(X, COUNTS, exposure=EXPOSURE)
    twice = tiny("poisson").fit(X, COUNTS, exposure=2.0 * EXPOSURE)
    np.testing.assert_allclose(twice.predict(X), 0.5 * once.predict(X), rtol=0.05)


def test_automatic_exposure_finds_size_factors_despite_gaps():
    exposure = np.repeat([0.5, 2.0], 15)
    Y = np.random.default_rng(2).poisson(50.0 * RATE[0] * exposure[:, None]).astype(float)
    # The common outputs are missing in half of the rows, which must not make these look small.
    Y[::2, np.argsort(-RATE[0])[:3]] = np.nan
    found = size_factors(Grid(X, Y))
    assert found[15:].mean() / found[:15].mean() == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("name", ["tlvmogp", "lvmogp", "gs-lvmogp"])
def test_every_cell_of_a_list_has_an_exposure(name):
    row, column = np.indices(COUNTS.shape).reshape(2, -1)
    cells, settings = (X[row], column, COUNTS[row, column]), {"likelihood": "poisson", "device": "cpu"}
    sizes = {"num_inducing": 12} if name == "tlvmogp" else {"num_inducing_latents": 4, "num_inducing_inputs": 8}
    model = ESTIMATORS[name](latent_dim=2, epochs=2, progress=False, **sizes, **settings)
    # Cells without a value have an exposure too, which is left out with them.
    model.fit_cells(*cells, exposure=EXPOSURE[row])
    seen = ~np.isnan(cells[2])
    np.testing.assert_array_equal(model.exposure_, EXPOSURE[row][seen])
    once, twice = model.predict(X), model.fit_cells(*cells, exposure=2.0 * EXPOSURE[row]).predict(X)
    np.testing.assert_allclose(twice, 0.5 * once, rtol=0.05)
    model.fit_cells(*cells, exposure="auto")
    np.testing.assert_allclose(model.exposure_, size_factors(Grid(X, COUNTS))[row][seen])
    with pytest.raises(DataError, match="exposure has 30 numbers and there are 180 rows"):
        model.fit_cells(*cells, exposure=EXPOSURE)


def test_scores_take_an_exposure():
    model = tiny("poisson").fit(X, COUNTS, exposure=EXPOSURE)
    scores = [model.score(X, COUNTS, exposure=factor * EXPOSURE) for factor in (1.0, 20.0)]
    assert scores[0] > 0 > scores[1]
    assert model.score(X, COUNTS) == model.score(X, COUNTS, exposure=np.ones(30))


def test_models_without_exposure_say_so():
    for fit in (lambda model: model.fit(X, REALS, exposure=EXPOSURE), lambda model: model.fit(with_exposure())):
        with pytest.raises(SettingError, match="IndGP takes no exposure"):
            fit(manygp.IndGP(device="cpu", progress=False))


def with_exposure():
    table = Grid(X, COUNTS)
    table.exposure = EXPOSURE
    return table


def test_a_table_brings_its_exposure():
    model = tiny("poisson").fit(with_exposure())
    np.testing.assert_array_equal(model.predict(X), tiny("poisson").fit(X, COUNTS, exposure=EXPOSURE).predict(X))
    assert model.evaluate(with_exposure()) == model.evaluate(X, COUNTS, exposure=EXPOSURE)
    assert model.score(with_exposure()) == model.score(X, COUNTS, exposure=EXPOSURE)


@pytest.mark.parametrize("likelihood", ["gaussian", "student-t", "bernoulli"])
def test_exposure_belongs_to_counts(likelihood):
    values = values_for(likelihood)
    with pytest.raises(SettingError, match="takes no exposure, which belongs to counts"):
        tiny(likelihood).fit(X, values, exposure=EXPOSURE)
    model = tiny(likelihood, epochs=1).fit(X, values)
    with pytest.raises(SettingError, match="takes no exposure"):
        model.predict_dist(X, exposure=EXPOSURE)


@pytest.mark.parametrize(
    ("exposure", "message"),
    [
        (EXPOSURE[:4], "exposure has 4 numbers and there are 30 rows"),
        (np.zeros(30), "exposure holds 0; give positive finite numbers"),
        (np.full(30, np.nan), "exposure holds nan"),
        ("much", "exposure='much' is unknown; give one positive number for each row or \"auto\""),
    ],
)
def test_exposures_that_make_no_sense(exposure, message):
    with pytest.raises(DataError, match=message):
        tiny("poisson").fit(X, COUNTS, exposure=exposure)


# -- in every model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "oilmm"])
def test_the_prior_of_pooled_noise_is_in_the_bound(name):
    sizes = {"num_latents": 2} if name == "sgprn" else {"latent_dim": 2} if "lvmogp" in name else {"num_inducing": 4}
    settings = {"likelihood": "pooled-gaussian", "standardize": "global", "epochs": 1, "device": "cpu"}
    fitted = ESTIMATORS[name](**sizes, **settings, progress=False).fit(X, REALS)
    batches = GridPlan(Grid(X, REALS), fitted.scaling_).epoch(np.random.default_rng(0))
    batch = CellBatch.from_arrays(next(iter(batches)), torch.float64, torch.device("cpu"))
    deviation, bound = torch.linspace(-1.0, 2.0, 6, dtype=torch.float64), {}
    for spread in (1.0, 4.0):
        fitted.model_.likelihood.set_deviation(deviation, spread)
        bound[spread] = fitted.model_.elbo(batch, torch.Generator().manual_seed(0)).bound
    # −½ δ²/τ² of every output
    assert_close(bound[4.0] - bound[1.0], 0.5 * (1.0 - 0.25) * deviation.square().sum())


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "value", "message"),
    [
        ("poisson", 0.5, "Y holds 0.5, but Poisson"),
        ("poisson", 1e300, r"Y holds 1e\+300, .* of at most"),
        ("zinb", -1.0, "Y holds -1"),
        ("bernoulli", 2.0, "Y holds 2"),
    ],
)
def test_values_outside_the_support(likelihood, value, message):
    Y = LABELS.copy()
    model = tiny(likelihood, epochs=1).fit(X, Y)
    Y[5, 2] = value
    with pytest.raises(DataError, match=message):
        tiny(likelihood).fit(X, Y)
    with pytest.raises(DataError, match=message):
        model.evaluate(X, Y)


@pytest.mark.parametrize("standardize", ["output", "global", "completed"])
@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_counts_are_not_scaled(standardize, preset):
    with pytest.raises(SettingError, match=f"standardize='{standardize}' would scale the outputs"):
        tiny("poisson", standardize=standardize, preset=preset).fit(X, COUNTS)
    assert (tiny("poisson", epochs=1, preset=preset).fit(X, COUNTS).scaling_.y_scale == 1.0).all()


def test_a_likelihood_for_other_outputs():
    with pytest.raises(SettingError, match="made for 3 outputs, but there are 6"):
        tiny(NegativeBinomial(3)).fit(X, COUNTS)
