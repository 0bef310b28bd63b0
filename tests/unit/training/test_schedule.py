"""Step sizes: warm-up, plateau, decay, and when to stop."""

import math

import pytest

from manygp.training import Schedule

STEPS = 10


def run(schedule, bound=lambda epoch: float(epoch)):
    """Rates of every step of a run whose bound is a function of the epoch."""
    rates, epoch = [], 0
    while not schedule.is_over:
        rates += [schedule.rates(epoch * STEPS + step) for step in range(STEPS)]
        schedule.record(bound(epoch))
        epoch += 1
        assert epoch < 10_000
    return rates


def test_a_given_number_of_epochs_is_run(rng):
    schedule = Schedule(STEPS, 0.1, epochs=7, max_epochs=3)
    assert len(run(schedule, lambda epoch: float("-inf"))) == 7 * STEPS
    assert schedule.stop_reason == "epochs"


@pytest.mark.parametrize("epochs", [1, 2, 50])
def test_rates_stay_within_their_limits(epochs):
    schedule = Schedule(STEPS, 0.1, epochs=epochs, max_epochs=epochs)
    for learning_rate, natural_rate in run(schedule):
        assert 0 < learning_rate <= 0.1
        assert 0 < natural_rate <= 1


def test_the_first_natural_step_is_a_whole_one():
    assert Schedule(STEPS, 0.1, epochs=20, max_epochs=20).rates(0)[1] == 1.0


def test_the_learning_rate_rises_stays_and_falls():
    rates = [learning_rate for learning_rate, _ in run(Schedule(STEPS, 0.1, epochs=50, max_epochs=50))]
    top = rates.index(max(rates))
    assert rates[0] < 0.05
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(0.1)
    assert rates[-1] < 0.1 * max(rates)


def test_a_bound_that_has_become_flat_ends_the_run():
    schedule = Schedule(STEPS, 0.1, epochs=None, max_epochs=1000)
    run(schedule, lambda epoch: -math.exp(-epoch / 5))
    assert schedule.stop_reason == "converged"
    assert len(schedule.bounds) < 250


def test_a_bound_that_keeps_rising_ends_with_the_budget():
    schedule = Schedule(STEPS, 0.1, epochs=None, max_epochs=60)
    run(schedule, lambda epoch: 1.0 * epoch)
    assert schedule.stop_reason == "budget"
    assert len(schedule.bounds) == 60


def test_a_run_that_stays_below_a_bound_ends_early():
    lengths = []
    for bound in (0.0, 2.0):
        schedule = Schedule(STEPS, 0.1, epochs=None, max_epochs=60, least_bound=1.0)
        while not schedule.is_over:
            schedule.record(bound + 0.1 * len(schedule.bounds) * (bound > 0))
        lengths.append(len(schedule.bounds))
    assert lengths[0] <= 10
    assert lengths[1] > 30


@pytest.mark.parametrize("max_epochs", [400, 4000])
def test_when_a_bound_is_flat_does_not_depend_on_the_budget(max_epochs):
    schedule = Schedule(STEPS, 0.1, epochs=None, max_epochs=max_epochs)
    run(schedule, lambda epoch: -1.0 / (1 + epoch))
    assert schedule.stop_reason == "converged"
    assert len(schedule.bounds) < 60


def test_a_run_goes_on_while_a_longer_one_pays():
    """A bound that rises with the logarithm of time: by as much in every fifth that a run becomes longer."""
    for slope, reason in ((0.3, "budget"), (0.05, "converged")):
        schedule = Schedule(STEPS, 0.1, epochs=None, max_epochs=500)
        run(schedule, lambda epoch, slope=slope: slope * math.log(1 + epoch))
        assert schedule.stop_reason == reason


@pytest.mark.parametrize("epochs", [None, 100])
def test_a_run_in_a_hurry_decays_in_time(epochs):
    """There is time for twenty epochs in all."""
    schedule = Schedule(STEPS, 0.1, epochs=epochs, max_epochs=100)
    while not schedule.is_over:
        schedule.record(float(len(schedule.bounds)))
        schedule.hurry(20 - len(schedule.bounds))
    assert len(schedule.bounds) == 20
    assert schedule.stop_reason == "time limit"
    assert schedule.rates(20 * STEPS - 1)[0] < 0.01


def test_the_end_is_foreseen_once_rises_fall():
    """A bound that is flat after some sixty epochs."""
    schedule = Schedule(STEPS, 0.1, epochs=None, max_epochs=600)
    foreseen = []
    while not schedule.is_over:
        schedule.record(-math.exp(-0.05 * len(schedule.bounds)))
        foreseen.append(schedule.expected_end)
    assert all(done <= end <= 600 for done, end in enumerate(foreseen, start=1))
    half = foreseen[len(foreseen) // 3]
    assert 0.5 * schedule.end < half < 2.0 * schedule.end
