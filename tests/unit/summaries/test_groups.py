"""Weights of sums: by arrays, labels and periods."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from manygp import DataError, SettingError
from manygp.summaries.events import exceedance, has_run, share_of_draws
from manygp.summaries.groups import given_weights, group_weights
from manygp.summaries.scores import crps_by_cdf, crps_by_draws, energy_score, variogram_score

ROWS = pd.DataFrame(index=pd.date_range("2020-11-01", periods=4, freq="MS"))
NAMES = ("a", ("b", 1), "c")


def groups(over, weights=None, by=None, freq=None, is_total=False, shape=(4, 3)):
    W, labels = group_weights(over, weights, by, freq, is_total, shape, ROWS, NAMES)
    return W.toarray().reshape(len(labels), *shape), labels


def test_means_over_outputs_have_weights_by_name():
    W, labels = groups("output", weights={"a": 1.0, ("b", 1): 3.0, "c": 0.0})
    np.testing.assert_allclose(W[2], [[0, 0, 0], [0, 0, 0], [0.25, 0.75, 0], [0, 0, 0]])
    assert list(labels.iloc[:, 0]) == list(ROWS.index)


def test_means_over_inputs_go_by_period():
    W, labels = groups("input", freq="YS")
    assert len(labels) == 6
    first = labels.index[(labels["output"] == "a") & (labels["period"] == pd.Timestamp("2020-01-01"))]
    np.testing.assert_allclose(W[first[0]][:, 0], [0.5, 0.5, 0, 0])


def test_labels_and_periods_together():
    W, labels = groups("output", by=["west", "east", "west"], freq="YS", is_total=True)
    chosen = labels.index[(labels["label"] == "west") & (labels["period"] == pd.Timestamp("2021-01-01"))][0]
    np.testing.assert_allclose(W[chosen], [[0, 0, 0], [0, 0, 0], [1, 0, 1], [1, 0, 1]])
    assert groups("all")[0].sum() == pytest.approx(1.0)


def test_given_weights_have_any_form():
    one = np.arange(12.0).reshape(4, 3)
    for given in (one, one[None], one.reshape(1, 12), sparse.csr_array(one.reshape(1, 12))):
        W, labels = given_weights(given, (4, 3))
        np.testing.assert_allclose(W.toarray(), one.reshape(1, 12))
        assert len(labels) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: given_weights(np.ones(5), (4, 3)), "shape"),
        (lambda: given_weights(np.full((4, 3), np.nan), (4, 3)), "finite"),
        (lambda: groups("output", weights=[1.0, 2.0]), "one for each"),
        (lambda: groups("output", weights={"a": 1.0}), "say nothing about"),
        (lambda: groups("output", weights=[1.0, -1.0, 0.0]), "add up to 0"),
        (lambda: group_weights("input", None, None, "YS", False, (2, 1), pd.DataFrame({0: [1, 2]}), "a"), "dates"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(DataError, match=words):
        call()


def test_unknown_names_are_refused():
    with pytest.raises(SettingError, match="unknown"):
        groups("rows")
    with pytest.raises(SettingError, match="level"):
        exceedance(None, None, None, 1, (4, 3))


def test_runs_and_shares():
    hits = np.array([[[1], [1], [0], [1]], [[0], [1], [1], [1]]], dtype=bool)
    np.testing.assert_array_equal(has_run(hits, 3), [[False], [True]])
    happens = exceedance(0.5, None, "all", 3, (4, 1))
    found = share_of_draws(happens(hits.astype(float)))
    assert float(found) == 0.5
    assert 0.0 < found.error < 0.5


def test_joint_scores_prefer_the_truth(rng):
    y = rng.multivariate_normal(np.zeros(3), np.ones((3, 3)) + 0.1 * np.eye(3), 60)
    right = rng.multivariate_normal(np.zeros(3), np.ones((3, 3)) + 0.1 * np.eye(3), 150)
    apart = np.sqrt(1.1) * rng.standard_normal((150, 3))
    for score in (energy_score, variogram_score):
        assert np.mean([score(right, one) for one in y]) < np.mean([score(apart, one) for one in y])


def test_the_crps_is_an_integral_of_the_distribution_function():
    mean, std, y = (torch.tensor(part).double() for part in ([0.0, 1.0, -3.0], [1.0, 0.2, 5.0], [0.3, -2.0, -3.0]))
    normal = torch.distributions.Normal(mean, std)
    found = crps_by_cdf(normal.cdf, mean, std, y, False)
    z = (y - mean) / std
    unit = torch.distributions.Normal(torch.zeros(3).double(), 1.0)
    exact = std * (z * (2 * unit.cdf(z) - 1) + 2 * unit.log_prob(z).exp() - np.pi**-0.5)
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-5)
    rate = torch.tensor([3.0]).double()
    counts = torch.poisson(rate.expand(20_000), torch.Generator().manual_seed(0))

    def cdf(t):
        return torch.special.gammaincc(t.floor() + 1.0, rate)

    found = crps_by_cdf(cdf, rate, rate.sqrt(), torch.tensor([5.0]).double(), True)
    drawn = crps_by_draws(counts.double().unsqueeze(-1), torch.tensor([5.0]).double())
    assert float(found) == pytest.approx(float(drawn), abs=0.03)
