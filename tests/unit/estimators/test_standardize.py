"""What `standardize` means for each kind of model."""

import numpy as np
import pytest

from manygp import OILMM, SettingError
from manygp.data import Grid
from manygp.estimators import ESTIMATORS
from manygp.estimators.standardize import check_scaled, published_scaling
from manygp.initialise import Survey
from manygp.likelihoods import Gaussian, Poisson


@pytest.fixture
def table(rng):
    """Outputs of different centres and scales."""
    return Grid(rng.uniform(size=(20, 1)), 5.0 * np.arange(4) + (1.0 + np.arange(4)) * rng.standard_normal((20, 4)))


@pytest.mark.parametrize(("standardize", "distinct"), [(True, 1), (False, 1), ("global", 1), ("output", 4)])
def test_the_published_scaling_leaves_inputs_raw(rng, table, standardize, distinct):
    scaling = published_scaling(standardize, table, is_affine=True)
    assert len(set(scaling.y_scale)) == distinct
    assert (scaling.y_scale[0] == 1.0) == (standardize is False)
    assert (scaling.x_center == 0.0).all()
    assert (scaling.x_scale == 1.0).all()
    with pytest.raises(SettingError, match="'completed' goes with preset='fast'"):
        published_scaling("completed", table, is_affine=True)


@pytest.mark.parametrize("standardize", [True, False])
def test_counts_are_left_as_they_are(rng, table, standardize):
    counts = Grid(table.X, rng.poisson(5.0, table.Y.shape).astype(float))
    survey = Survey(counts, Poisson(), rng, standardize)
    scalings = [published_scaling(standardize, counts, is_affine=False), survey.scaling, survey.own_scaling]
    for scaling in scalings:
        assert (scaling.y_center == 0.0).all()
        assert (scaling.y_scale == 1.0).all()
    for scaling in scalings[1:]:
        assert (scaling.x_scale == 1.0).all() == (standardize is False)
    check_scaled(standardize, Poisson())


def test_counts_that_were_to_be_scaled():
    check_scaled("output", Gaussian())
    with pytest.raises(SettingError, match="standardize='output' would scale the outputs, but Poisson"):
        check_scaled("output", Poisson())


@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("kind", [kind for kind in ESTIMATORS.values() if kind is not OILMM])
def test_every_estimator_refuses_to_scale_counts(rng, kind, preset):
    model = kind(likelihood="poisson", standardize="output", preset=preset, progress=False)
    with pytest.raises(SettingError, match="standardize='output' would scale the outputs, but Poisson"):
        model.fit(rng.uniform(size=(20, 1)), rng.poisson(3.0, (20, 3)))
