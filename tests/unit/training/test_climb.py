"""Climbs with all data at hand, and what they tell of themselves."""

import itertools

import pytest
import torch
from torch import nn

from manygp.errors import NumericalError
from manygp.training import climb, climb_each
from manygp.variational import ElboTerms

CENTER = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


class Hill(nn.Module):
    """A bound with its top at a centre: a data term less a divergence."""

    def __init__(self):
        super().__init__()
        self.at, self.still = nn.Parameter(torch.zeros(3).double()), nn.Parameter(torch.ones(1).double(), False)

    def bound(self):
        steep = torch.tensor([1.0, 10.0, 0.1]).double()
        return ElboTerms(-(steep * (self.at - CENTER).square()).sum(), 0.5 * self.still.sum(), torch.zeros(()).double())


def test_a_climb_finds_the_top_and_leaves_constants():
    hill = Hill()
    history = climb(hill.parameters(), hill.bound, 1, 40, natural_rate=1.0)
    assert torch.allclose(hill.at.detach(), CENTER, atol=1e-4)
    assert hill.still.item() == 1.0
    assert history.stop_reason == "converged"
    assert all(after >= before for before, after in itertools.pairwise(history["bound"]))
    for record in history.records:
        assert record.bound == pytest.approx(record.expected_log_lik - record.kl_u - record.kl_h)
    assert history["kl_u"][-1] == 0.5
    assert history["natural_rate"][-1] == 1.0


def test_a_climb_that_is_too_short_says_so():
    hill = Hill()
    history = climb(hill.parameters(), hill.bound, 1, 2)
    assert (history.stop_reason, len(history)) == ("epochs", 2)


@pytest.mark.parametrize(
    ("error", "reason"), [(NumericalError("too far"), "failed"), (KeyboardInterrupt, "interrupted")]
)
def test_a_climb_that_is_cut_short_goes_back_to_the_best(error, reason):
    hill, calls = Hill(), []

    def bound():
        calls.append(1)
        if len(calls) == 4:
            raise error
        return hill.bound()

    history = climb(hill.parameters(), bound, 1, 40)
    assert history.stop_reason == reason
    assert float(hill.bound().bound.detach()) == history["bound"][-1] == max(history["bound"])


def test_nothing_finite_is_no_climb():
    hill = Hill()
    nothing = lambda: ElboTerms(hill.at.sum() * torch.nan, *torch.zeros(2).double())  # noqa: E731
    with pytest.raises(NumericalError, match="not finite where the climb begins"):
        climb(hill.parameters(), nothing, 1, 5)


def test_many_climbs_at_once_by_adam():
    top = torch.tensor([[1.0, 2.0], [-1.0, 0.5]], dtype=torch.float64)

    def problems(x, which):
        return -(x - top[which]).square().sum(-1), 2.0 * (top[which] - x)

    start = torch.zeros(2, 2).double()
    rows, history = climb_each(problems, start, 300, 0.05)
    assert torch.allclose(rows, top, atol=1e-2)
    assert not start.any()
    assert (len(history), history.stop_reason) == (300, "epochs")
    assert history["bound"][0] == pytest.approx(-float(top.square().sum()))
    assert set(history["learning_rate"]) == {0.05}
