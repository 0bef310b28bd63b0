"""Many small problems at once: each is solved as if it were alone."""

import itertools

import torch

from manygp.training import Minimum, minimise_each

from ...laws import worlds


def test_quadratics_of_all_shapes(rng):
    A = torch.stack([worlds.positive_definite(rng, 4) * 10.0**i for i in range(-2, 4)])
    center = worlds.normal(rng, 6, 4)

    def problems(x, which):
        gradient = (A[which] @ (x - center[which]).unsqueeze(-1)).squeeze(-1)
        return 0.5 * ((x - center[which]) * gradient).sum(-1), gradient

    found = minimise_each(problems, torch.zeros(6, 4, dtype=torch.float64), tolerance=1e-14)
    assert isinstance(found, Minimum)
    assert torch.allclose(found.x, center, atol=1e-4)
    assert torch.allclose(found.value, problems(found.x, torch.arange(6))[0])


def rosenbrock(x, which):
    a, b = x[:, 0], x[:, 1]
    value = (1 - a) ** 2 + 100 * (b - a**2) ** 2
    gradient = torch.stack([-2 * (1 - a) - 400 * a * (b - a**2), 200 * (b - a**2)], -1)
    return value, gradient


def test_a_curved_valley_from_several_starts(rng):
    start = 2.0 * worlds.normal(rng, 20, 2)
    found = minimise_each(rosenbrock, start, max_evaluations=300, tolerance=1e-12)
    assert torch.allclose(found.x, torch.ones(20, 2, dtype=torch.float64), atol=1e-3)


def test_a_problem_does_not_depend_on_the_others(rng):
    start = 2.0 * worlds.normal(rng, 5, 2)
    together = minimise_each(rosenbrock, start, max_evaluations=40)
    for i in range(5):
        alone = minimise_each(rosenbrock, start[i : i + 1], max_evaluations=40)
        assert torch.equal(alone.x[0], together.x[i])


def test_solved_problems_are_not_evaluated_again():
    sizes = []

    def problems(x, which):
        sizes.append(len(which))
        # One starts at its minimum, the other far from it.
        return (x.square().sum(-1) + which) ** 2, 4.0 * (x.square().sum(-1) + which).unsqueeze(-1) * x

    start = torch.tensor([[0.0, 0.0], [5.0, -3.0]], dtype=torch.float64)
    found = minimise_each(problems, start)
    assert sizes[:2] == [2, 2]
    assert set(sizes[2:]) == {1}
    assert found.evaluations == len(sizes)
    assert found.stop_reason == "converged"


def test_values_that_are_not_finite_are_not_accepted():
    def problems(x, which):
        # Undefined left of zero, with its minimum close by.
        return (x - 0.01 * x.log()).sum(-1), 1.0 - 0.01 / x

    found = minimise_each(problems, torch.full((3, 1), 2.0, dtype=torch.float64), tolerance=1e-12)
    assert torch.allclose(found.x, torch.full((3, 1), 0.01, dtype=torch.float64), atol=1e-4)


def test_the_budget_is_kept(rng):
    start = 2.0 * worlds.normal(rng, 5, 2)
    found = minimise_each(rosenbrock, start, max_evaluations=4)
    assert found.evaluations == 4
    assert found.stop_reason == "budget"
    assert (found.value <= rosenbrock(start, torch.arange(5))[0]).all()


def test_who_observes_sees_every_evaluation(rng):
    seen, start = [], 2.0 * worlds.normal(rng, 5, 2)
    observe = lambda x, value: seen.append((x.clone(), value.clone()))  # noqa: E731
    found = minimise_each(rosenbrock, start, max_evaluations=30, observe=observe)
    assert len(seen) == found.evaluations - 1
    assert torch.equal(seen[-1][0], found.x)
    for (_, before), (x, after) in itertools.pairwise(seen):
        assert (after <= before).all()
        assert torch.equal(after, rosenbrock(x, torch.arange(5))[0])
