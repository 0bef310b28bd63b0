"""Functions, completed tables, relations of outputs and posteriors of fitted models."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from manygp import DataError, DrawnFunctions, Imputer, IndGP, ModelFileError, SettingError
from manygp.estimators import OILMM, TLVMOGP

QUIET = {"device": "cpu", "progress": False}


def waves(num_inputs=20, num_outputs=4):
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, num_inputs)[:, None]
    Y = np.sin(5 * x + np.linspace(0, 1, num_outputs)) + 0.05 * rng.standard_normal((num_inputs, num_outputs))
    Y[rng.uniform(size=Y.shape) < 0.2] = np.nan
    return x, Y


@pytest.fixture(scope="module")
def model():
    """A T-LVMOGP with neighbours."""
    x, Y = waves(30, 5)
    return TLVMOGP(latent_dim=2, num_inducing=10, num_neighbors=8, epochs=3, **QUIET).fit(
        x, Y, output_names=list("abcde")
    )


def test_functions_can_be_asked_again_and_saved(model, tmp_path):
    functions = model.sample_functions(3, random_state=1)
    x = np.array([[0.31], [0.5]])
    values = functions(x, ["b", "d"])
    assert values.shape == (3, 2, 2)
    np.testing.assert_allclose(functions[1](x, ["d"])[:, 0], values[1, :, 1], atol=1e-8)
    np.testing.assert_allclose(
        model.predict_dist(x, ["b", "d"], observation_noise=False).sample(3, 1), values, atol=1e-8
    )
    functions.save(tmp_path / "f")
    np.testing.assert_array_equal(DrawnFunctions.load(tmp_path / "f")(x, ["b", "d"]), values)
    with pytest.raises(ModelFileError, match="no functions"):
        DrawnFunctions.load(tmp_path)


def test_completed_tables_keep_what_was_observed(model):
    x, Y = waves(30, 5)
    frame = pd.DataFrame(Y, columns=list("abcde"), index=pd.Index(x[:, 0], name="t"))
    tables = model.impute(frame, n=3)
    assert all(isinstance(table, pd.DataFrame) and not table.isna().any().any() for table in tables)
    seen = ~np.isnan(Y)
    for table in tables:
        np.testing.assert_array_equal(table.to_numpy()[seen], Y[seen])
    assert not np.allclose(tables[0].to_numpy()[~seen], tables[1].to_numpy()[~seen])


def test_relations_of_outputs(model):
    C = model.correlation(["a", "b"])
    np.testing.assert_allclose(np.diagonal(C), 1.0)
    np.testing.assert_allclose(C, C.T)
    assert list(C.columns) == ["a", "b"]
    after = model.correlation(posterior=True, X=[[0.2]]).to_numpy()
    assert np.linalg.eigvalsh(after).min() > -1e-8
    near = model.nearest_outputs("a", 2)
    assert len(near) == 2
    assert "a" not in near.index
    shares = model.explained()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert {"shared", "noise"} <= set(shares.columns)


def test_independent_outputs_are_not_related():
    x, Y = waves()
    C = IndGP(**QUIET).fit(x, Y).correlation()
    np.testing.assert_array_equal(C, np.eye(4))


@pytest.mark.parametrize("kind", ["two scales", "mixture", "orthogonal"])
def test_posteriors_have_the_gradient_of_finite_differences(model, kind):
    botorch = pytest.importorskip("botorch")
    x, Y = waves()
    if kind == "mixture":
        model = TLVMOGP(latent_dim=2, num_inducing=8, num_neighbors=0, epochs=2, num_samples=3, **QUIET).fit(x, Y)
    if kind == "orthogonal":
        model = OILMM(num_latents=2, epochs=5, **QUIET).fit(x, Y)
    X = torch.tensor([[0.333], [0.61]], dtype=torch.float64)
    posterior = model.posterior(X, [0, 2])
    assert posterior.mean.shape == (2, 2)
    assert posterior.rsample(torch.Size([3])).shape == (3, 2, 2)
    dist = model.predict_dist(X.numpy(), [0, 2], observation_noise=False)
    np.testing.assert_allclose(posterior.mean.detach(), dist.mean, rtol=1e-6)
    np.testing.assert_allclose(posterior.variance.detach(), dist.variance, rtol=1e-4)
    acquisition = botorch.acquisition.LogExpectedImprovement(model.to_botorch([0]), best_f=0.5)
    point = X[:1].clone().requires_grad_()
    value = acquisition(point)
    (gradient,) = torch.autograd.grad(value, point)
    step = 1e-5
    ends = [float(acquisition(X[:1] + sign * step)) for sign in (1.0, -1.0)]
    assert float(gradient) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3, abs=1e-4)


def test_posteriors_refuse_what_they_cannot_take(model):
    pytest.importorskip("botorch")
    with pytest.raises(DataError, match="torch tensor"):
        model.posterior(np.zeros((2, 1)))


# -- the transformer ---------------------------------------------------------------------------------------------------

CHECKED = Imputer(IndGP(preset="paper", epochs=1, **QUIET))


@parametrize_with_checks([CHECKED])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_an_imputer_fills_gaps_in_a_pipeline():
    x, Y = waves()
    imputer = Imputer(IndGP(**QUIET), return_std=True)
    filled, std = imputer.fit_transform(Y)
    seen = ~np.isnan(Y)
    np.testing.assert_array_equal(filled[seen], Y[seen])
    assert (std[seen] == 0).all()
    assert (std[~seen] > 0).all()
    draws = Imputer(IndGP(**QUIET), n_draws=3).fit_transform(Y)
    assert draws.shape == (3, *Y.shape)
    target = np.nan_to_num(Y[:, 0])
    pipeline = make_pipeline(Imputer(OILMM(num_latents=2, epochs=5, **QUIET), inputs=[0]), Ridge())
    table = np.c_[x, Y]
    # Rows that were not in the fit are conditioned on what they hold.
    assert pipeline.fit(table[:15], target[:15]).predict(table[15:]).shape == (5,)


def test_an_imputer_refuses_what_it_cannot_fill():
    _, Y = waves()
    with pytest.raises(SettingError, match="n_draws"):
        Imputer(n_draws=-1).fit(Y)
    with pytest.raises(DataError, match="no column"):
        Imputer(inputs=["time"]).fit(Y)
    Y[:, 1] = np.nan
    with pytest.raises(DataError, match="no value in the fit"):
        Imputer(IndGP(**QUIET)).fit_transform(Y)
