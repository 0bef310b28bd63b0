"""The layout of the data and the precision of the work do not change what is learnt."""

import numpy as np
import pandas as pd
import pytest

from manygp import TLVMOGP
from manygp.data import Cells

from ..tolerances import PREDICTION, assert_close
from .conftest import NAMES, fitted, fresh, observations
from .registry import ESTIMATORS

X_NEW = np.linspace(0, 1, 9)[:, None]


def as_cells(rng=None):
    """The observed cells of the table as a list, in order or shuffled."""
    X, Y = observations()
    row, column = np.nonzero(~np.isnan(Y))
    if rng is not None:
        order = rng.permutation(len(row))
        row, column = row[order], column[order]
    return X[row], [NAMES[c] for c in column], Y[row, column]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_cells_that_share_inputs_are_a_grid(name, rng):
    model = fresh(name).fit_cells(*as_cells(rng), output_names=NAMES)
    assert model.output_names_ == NAMES
    assert np.array_equal(model.predict(X_NEW), fitted(name).predict(X_NEW))


def test_cells_kept_as_cells_have_the_same_bound(monkeypatch):
    """With everything in one batch and a start that does not look at the layout, each epoch is the same."""
    settings = ESTIMATORS["tlvmogp, paper preset"][1] | {"latent_posterior": "point"}
    X, Y = observations()
    grid = TLVMOGP(**settings, batch_inputs=None, batch_outputs=None).fit(X, Y, output_names=NAMES)
    monkeypatch.setattr(Cells, "compact", lambda self: self)
    cells = TLVMOGP(**settings).fit_cells(*as_cells(), output_names=NAMES)
    np.testing.assert_allclose(cells.history_["bound"], grid.history_["bound"], rtol=1e-9)
    assert_close(cells.predict(X_NEW), grid.predict(X_NEW), PREDICTION)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_outputs_may_have_inputs_of_their_own(name, rng):
    x = rng.uniform(size=(60, 1))
    outputs = rng.choice(["a", "b", "c"], size=60)
    model = fresh(name).fit_cells(x, outputs, np.sin(5 * x[:, 0]), output_names=["c", "a", "b"])
    assert model.output_names_ == ("c", "a", "b")
    mean, std = model.predict(X_NEW, return_std=True, outputs=["a"])
    assert mean.shape == std.shape == (9, 1)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_containers_do_not_matter():
    X, Y = observations()
    expected = fresh("tlvmogp").fit(X, Y).predict(X)
    frame = pd.DataFrame(Y, index=X[:, 0])
    mask = ~np.isnan(Y)
    for data, keywords in (
        ((X.tolist(), Y.tolist()), {}),
        ((pd.DataFrame(X), pd.DataFrame(Y)), {}),
        ((None, frame), {}),
        ((X, np.nan_to_num(Y, nan=99.0)), {"mask": mask}),
    ):
        assert np.array_equal(fresh("tlvmogp").fit(*data, **keywords).predict(X), expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_float32_predicts_nearly_the_same(name):
    X, Y = observations()
    # Adam's first steps are of one size, however small a gradient is, whose sign may be a matter of rounding.
    slow = {"learning_rate": 1e-4} if hasattr(fresh(name), "learning_rate") else {}
    single, double = (
        fresh(name).set_params(dtype=dtype, **slow).fit(X, Y, output_names=NAMES) for dtype in ("float32", "float64")
    )
    ours, theirs = single.predict_dist(X_NEW), double.predict_dist(X_NEW)
    assert ours.mean.dtype == np.float64
    # In units of the uncertainty
    np.testing.assert_allclose(ours.mean / theirs.std, theirs.mean / theirs.std, atol=0.05)
    np.testing.assert_allclose(ours.std, theirs.std, rtol=0.05)
    assert single.evaluate(X, Y)["nll"] == pytest.approx(double.evaluate(X, Y)["nll"], abs=0.02)
    assert all(parameter.dtype.itemsize == 8 for parameter in single.model_.parameters())
