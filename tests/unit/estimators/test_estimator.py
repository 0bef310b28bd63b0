"""Data errors at the public edge, warnings, fitted attributes, and what is left after something went wrong."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

import manygp
from manygp import TLVMOGP, DataError, NotFittedError, SettingError

X = np.linspace(0, 1, 8)[:, None]
Y = np.column_stack([np.sin(5 * X[:, 0]), np.cos(5 * X[:, 0]), X[:, 0]])
TINY = {"latent_dim": 2, "num_inducing": 5, "epochs": 2, "standardize": "output", "device": "cpu", "progress": False}


def tiny(**settings):
    return TLVMOGP(**(TINY | settings))


@pytest.fixture(scope="module")
def model():
    """Fitted once; tests must not change it."""
    return tiny().fit(X, Y, output_names=["a", 7, ("c", 1)])


def with_value(array, value):
    changed = array.astype(object if isinstance(value, str) else float)
    changed[2, 0] = value
    return changed


# -- data at fit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:, 0], Y, r"Expected 2D array, got 1D array.*reshape\(-1, 1\)"),
        (X[:, :, None], Y, "Expected 2D array, got 3D array"),
        (X, Y[:, :, None], r"Y has shape \(8, 3, 1\); expected \(inputs, outputs\)"),
        (X, np.float64(3.0), "Y has shape"),
        (X[:5], Y, "X has 5 rows and Y has 8"),
        (X, Y[:5], "X has 8 rows and Y has 5"),
        (X[:0], Y[:0], "X has 0 rows"),
        (X[:, :0], Y, r"X has 0 feature\(s\)"),
        (X, Y[:, :0], "Y has no output"),
        (X, None, "target y is None"),
        (None, Y, "X is None and Y is a ndarray"),
        (X, np.full_like(Y, np.nan), "Y has no observed cell"),
        (X, with_value(Y, np.inf), r"Y contains infinity \(row 2, output 0\)"),
        (X, with_value(Y, -np.inf), "Y contains infinity"),
        (with_value(X, np.inf), Y, "X contains NaN or infinity"),
        (with_value(X, np.nan), Y, "X contains NaN or infinity"),
        (with_value(X, "warm"), Y, "X holds values that are not numbers"),
        (X, with_value(Y, "cold"), "Y holds values that are not numbers"),
        (X, Y.astype(str), "Y holds text"),
        (X, Y * 1j, "Complex data not supported"),
        ([[1.0], [2.0, 3.0]], Y[:2], "X cannot be read as an array"),
    ],
)
def test_data_that_cannot_be_fitted(x, y, message):
    model = tiny()
    with pytest.raises(DataError, match=message) as caught:
        model.fit(x, y)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert not hasattr(model, "model_")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"output_names": ["a", "b", "a"]}, "Output name 'a' occurs more than once"),
        ({"output_names": ["a", "b"]}, "2 output names and 3 outputs"),
        ({"output_names": [["a"], "b", "c"]}, r"Output name \['a'\] cannot be looked up"),
        ({"mask": np.ones((8, 2), bool)}, r"mask has shape \(8, 2\) and Y has \(8, 3\)"),
        ({"mask": np.zeros((8, 3), bool)}, "no observed cell"),
        ({"mask": np.full((8, 3), 0.5)}, "mask has dtype float64"),
    ],
)
def test_names_and_masks_that_do_not_fit(keywords, message):
    with pytest.raises(DataError, match=message):
        tiny().fit(X, Y, **keywords)


@pytest.mark.parametrize(
    ("x", "outputs", "y", "message"),
    [
        (X, ["a"] * 7, Y[:, 0], "8 cells and 7 outputs"),
        (X, ["a"] * 8, Y[:5, 0], r"x has 8 rows and y has shape \(5,\)"),
        (X, ["a"] * 8, np.full(8, np.nan), "y has no observed cell"),
        (X, ["a"] * 8, with_value(Y, np.inf)[:, 0], "y contains infinity"),
        (X[:, 0], ["a"] * 8, Y[:, 0], "Expected 2D array"),
        (X, [None] * 8, Y[:, 0], "outputs contains missing values"),
    ],
)
def test_cells_that_cannot_be_fitted(x, outputs, y, message):
    with pytest.raises(DataError, match=message):
        tiny().fit_cells(x, outputs, y)


def test_cells_of_an_output_without_a_name():
    with pytest.raises(DataError, match="'z', which is not among output_names"):
        tiny().fit_cells(X, ["z"] * 8, Y[:, 0], output_names=["a"])


def test_an_output_without_observations_is_allowed_with_a_warning():
    gaps = Y.copy()
    gaps[:, 1] = np.nan
    with pytest.warns(
        UserWarning, match=r"1 of 3 outputs have no observed cell \('b'\): they are predicted from the prior"
    ) as caught:
        model = tiny().fit(X, gaps, output_names=["a", "b", "c"])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    with pytest.warns(UserWarning, match="no observed cell"):
        tiny().fit_cells(X, ["a", "b"] * 4, Y[:, 0], output_names=["a", "b", "c"])


def test_an_input_without_observations_is_allowed():
    gaps = Y.copy()
    gaps[3] = np.nan
    assert np.isfinite(tiny().fit(X, gaps).predict(X)).all()


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X[:1], Y[:1]),
        (X[:1], Y[:1, 0]),
        (X[:2], Y[:2]),
        (np.zeros((8, 2)), Y),
        (X, np.ones((8, 3))),
        (X, np.zeros((8, 1))),
        (np.zeros((8, 1)), np.zeros((8, 3))),
        (1e9 * X, 1e9 * Y),
        (1e-9 * X, 1e-9 * Y),
        (X, Y > 0.5),
        (X, np.where(np.eye(8, 3) > 0, Y, np.nan)),
        (np.repeat(X, 2, 0), np.repeat(Y, 2, 0)),
    ],
    ids=[
        "one input",
        "one cell",
        "two inputs",
        "constant inputs",
        "constant outputs",
        "zeros",
        "constant everything",
        "huge",
        "minute",
        "booleans",
        "one cell each",
        "repeated inputs",
    ],
)
@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_odd_data_are_fitted_all_the_same(x, y, preset):
    model = TLVMOGP(epochs=2, preset=preset, device="cpu", progress=False, latent_dim=1).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    if preset == "fast":
        # A constant is predicted as such.
        constant = np.ptp(np.asarray(y, dtype=float)) == 0
        assert not constant or np.allclose(mean, y, atol=0.1)


# -- predicting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.predict(X),
        lambda model: model.predict_dist(X),
        lambda model: model.predict_cells(X, [0] * 8),
        lambda model: model.evaluate(X, Y),
        lambda model: model.score(X, Y),
        lambda model: model.save("nowhere"),
        lambda model: model.lipschitz_interval(),
    ],
)
def test_asking_before_fitting(ask):
    with pytest.raises(NotFittedError, match="This TLVMOGP has not been fitted: call fit or fit_cells first") as caught:
        ask(tiny())
    assert isinstance(caught.value, SklearnNotFittedError)


def test_fitted_attributes_are_not_there_before_fitting():
    for name in ("latent_mean_", "latent_covariance_", "inducing_points_", "history_", "output_names_"):
        assert not hasattr(tiny(), name)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 2)), "X has 2 features, but TLVMOGP is expecting 1 features as input"),
        (np.zeros(4), "Expected 2D array, got 1D array.*Reshape your data"),
        (np.zeros((0, 1)), "X has 0 rows"),
        (np.full((2, 1), np.nan), "X contains NaN or infinity"),
        ([["a"]], "X holds text"),
    ],
)
def test_inputs_that_cannot_be_predicted_at(model, x, message):
    for ask in (model.predict, model.predict_dist, lambda x: model.predict_cells(x, ["a"] * len(x))):
        with pytest.raises(DataError, match=message):
            ask(x)


@pytest.mark.parametrize("outputs", [["z"], "z", [3], -1, [0, "z"], [None], 1.5])
def test_unknown_outputs(model, outputs):
    with pytest.raises(
        DataError, match=r"Output .* is unknown; expected one of the 3 output names \('a', 7, \('c', 1\)\)"
    ):
        model.predict(X, outputs=outputs)


def test_cells_need_an_output_each(model):
    with pytest.raises(DataError, match="x has 8 rows and outputs names 2"):
        model.predict_cells(X, ["a", 7])


def test_values_to_score_must_fit(model):
    with pytest.raises(DataError, match="Y has 2 outputs, but the model was fitted with 3"):
        model.evaluate(X, Y[:, :2])
    with pytest.raises(DataError, match=r"Y has shape \(8, 2\), but the prediction has shape \(8, 1\)"):
        model.evaluate(X, Y[:, :2], outputs=["a"])
    with pytest.raises(DataError, match="X has 8 rows and Y has 7"):
        model.evaluate(X, Y[:7])
    for ask in (model.evaluate, model.score):
        with pytest.raises(DataError, match="no observed cell"):
            ask(X, np.full_like(Y, np.nan))
        with pytest.raises(DataError, match="Y has 2 outputs"):
            ask(X, Y[:, :2])
        with pytest.raises(DataError, match="X has 3 rows and Y has 8"):
            ask(X[:3], Y)
        with pytest.raises(DataError, match="Y holds text"):
            ask(X, Y.astype(str))
    with pytest.raises(DataError, match=r"sample_weight has shape \(3,\) and X has 8 rows"):
        model.score(X, Y, np.ones(3))


def test_settings_of_predictions_are_checked_too():
    model = tiny().fit(X, Y).set_params(num_samples=0)
    with pytest.raises(SettingError, match="num_samples=0"):
        model.predict(X)


# -- fitted attributes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latent_posterior", ["full", "diagonal", "point"])
def test_fitted_attributes(latent_posterior):
    model = tiny(latent_posterior=latent_posterior).fit(X, Y, output_names=["a", "b", "c"])
    assert model.latent_mean_.shape == (3, 2)
    covariance = model.latent_covariance_
    assert covariance.shape == (3, 2, 2)
    assert (np.linalg.eigvalsh(covariance) >= 0).all()
    assert (covariance == 0).all() == (latent_posterior == "point")
    assert model.inducing_points_.shape == (5, 3)
    assert (model.n_features_in_, model.n_outputs_) == (1, 3)
    assert model.output_names_ == ("a", "b", "c")
    assert len(model.history_) == 2
    assert model.history_.stop_reason == "epochs"
    assert np.isfinite(model.history_["bound"]).all()


def test_the_certified_interval():
    lower, upper = tiny(spectral_bound=0.1, num_blocks=2).fit(X, Y).lipschitz_interval()
    assert 0.8 < lower < 1 < upper < 1.22
    with pytest.raises(SettingError, match="embedding='identity' has no certified interval"):
        tiny(embedding="identity").fit(X, Y).lipschitz_interval()


def test_a_network_bends_where_many_inputs_tell_how(rng, tmp_path):
    settings = {"num_inducing": 4, "latent_dim": 1, "num_blocks": 1, "epochs": 1}
    many, features = rng.standard_normal((900, 5)), (1, 5)
    Y = rng.standard_normal((900, 2))
    bounds = [tiny(**settings).fit(many[:, :d], Y)._sizes()["spectral_bound"] for d in features]
    assert bounds == [0.1, 1.0]
    few = tiny(**settings).fit(many[:800], Y[:800])
    assert few._sizes()["spectral_bound"] == 0.1
    flexible = tiny(**settings).fit(many, Y)
    flexible.save(tmp_path / "model")
    again = manygp.load(tmp_path / "model")
    assert again._sizes()["spectral_bound"] == 1.0
    assert np.array_equal(again.predict(many[:5]), flexible.predict(many[:5]))


def test_automatic_choices():
    model = TLVMOGP(epochs=2, device="cpu", progress=False).fit(X, Y)
    assert 1 <= model.latent_mean_.shape[1] <= 3
    assert 1 <= len(model.inducing_points_) <= Y.size
    prior = TLVMOGP(epochs=2, device="cpu", progress=False, latent_prior_mean=np.zeros((3, 1))).fit(X, Y)
    assert prior.latent_mean_.shape == (3, 1)


def test_epochs_can_find_their_own_end(monkeypatch):
    monkeypatch.setattr("manygp.estimators.trained._MAX_EPOCHS", 60)
    model = tiny(epochs="auto").fit(X, Y)
    assert model.history_.stop_reason in ("converged", "budget")
    assert len(model.history_) > 2


# -- when something goes wrong -----------------------------------------------------------------------------------------


def test_a_fit_that_fails_leaves_the_model_before_it():
    model = tiny().fit(X, Y)
    before = model.predict(X)
    with pytest.raises(DataError):
        model.fit(X[:3], Y)
    with pytest.raises(SettingError):
        model.set_params(kernel="nothing like it").fit(np.zeros((5, 4)), np.zeros((5, 2)))
    assert np.array_equal(model.set_params(kernel="rbf").predict(X), before)
    assert (model.n_features_in_, model.n_outputs_) == (1, 3)


def test_divergence_is_reported_and_leaves_the_model_before_it():
    model = tiny().fit(X, Y)
    before = model.predict(X)
    with pytest.warns(UserWarning, match="no longer finite"), pytest.raises(manygp.NumericalError):
        model.set_params(learning_rate=1e8, epochs=50).fit(X, Y)
    assert np.array_equal(model.predict(X), before)


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_ctrl_c_keeps_what_was_learnt(monkeypatch, preset):
    from manygp.estimators import trained

    class Interrupting:
        def __enter__(self):
            return self

        def __exit__(self, *exception): ...

        def update(self, epoch, total, bound_per_cell):
            if epoch == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(trained, "make_progress", lambda progress: Interrupting())
    model = tiny(preset=preset, epochs=50).fit(X, Y)
    assert model.history_.stop_reason == "interrupted"
    assert len(model.history_) == 3
    mean, std = model.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_ctrl_c_in_the_first_epoch_still_gives_a_model(monkeypatch, tmp_path):
    from manygp.data import GridPlan

    def interrupted(self, rng):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(GridPlan, "epoch", interrupted)
    model = tiny().fit(X, Y)
    assert model.history_.stop_reason == "interrupted"
    assert len(model.history_) == 0
    assert np.isfinite(model.predict(X)).all()
    model.save(tmp_path / "model")
    assert np.array_equal(manygp.load(tmp_path / "model").predict(X), model.predict(X))
