import pytest
import torch

from manygp.terms import Level, OwnPart, Points, RowEffects, SharedPart, SharedShocks, Term, Terms, Trend, make_term

from ...laws import worlds
from ...tolerances import assert_close

SIZES = {"own part": (3,), "row effects": (3, 2), "shared shocks": (2,), "shared part": (2, 1)}
NAMES = [kind.name for kind in (Level, Trend, OwnPart, SharedShocks, SharedPart, RowEffects)]


def some(name, p=4, d=1, h=2):
    """A term with every number at random."""
    generator = torch.Generator().manual_seed(0)
    term = make_term(name, SIZES.get(name, ()), p, d, h)
    for parameter in term.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    if isinstance(term, RowEffects):
        # The first inputs of the points below
        term.inputs.copy_(torch.arange(3.0).unsqueeze(-1))
        for part in (term.posterior_mean, term.loadings):
            part.copy_(torch.randn(part.shape, dtype=torch.float64, generator=generator))
        term.posterior_covariance.copy_(0.3 * torch.eye(2).expand(3, 2, 2))
    if isinstance(term, Trend):
        term.own.copy_(torch.randn(p, d, dtype=torch.float64, generator=generator))
    return term


@pytest.fixture
def points(rng):
    outputs = torch.tensor([[0, 1, 0, 3, 2], [2, 2, 1, 0, 0]])
    row = torch.tensor([[0, 0, 1, 2, 2], [1, 2, 2, 0, 3]])
    h = torch.as_tensor(rng.standard_normal((4, 2)))
    return Points(row.unsqueeze(-1).double(), outputs, row, h[outputs])


def test_every_term_can_be_made_by_its_name():
    kinds = {*Term.__subclasses__(), SharedPart, SharedShocks}
    assert set(NAMES) == {kind.name for kind in kinds if kind.__module__.startswith("manygp") and hasattr(kind, "name")}
    for name in NAMES:
        assert (some(name).name, some(name).sizes()) == (name, SIZES.get(name, ()))


@pytest.mark.parametrize("name", NAMES)
def test_covariances_are_those_of_some_gaussian(points, name):
    term = some(name)
    C = term.covariance(points, points)
    assert_close(C, C.mT)
    assert_close(C.diagonal(dim1=-2, dim2=-1), term.variance(points))
    assert torch.linalg.eigvalsh(C).min() > -1e-10


@pytest.mark.parametrize("name", NAMES)
def test_slopes_are_derivatives_of_the_mean(points, name):
    term, h = some(name), points.h.clone().requires_grad_()
    mean = term.mean(Points(points.x, points.outputs, points.row, h))
    expected = torch.zeros_like(h)
    if mean.requires_grad:
        expected = torch.autograd.grad(mean.sum() + 0.0 * h.sum(), h)[0]
    assert_close(term.slope(points), expected)


@pytest.mark.parametrize("name", NAMES)
def test_draws_of_latent_vectors_share_their_cells(rng, points, name):
    """Latent vectors may have an axis more than cells."""
    term, draws = some(name), torch.as_tensor(rng.standard_normal((3, 2, 5, 2)))
    together = Terms([term]).mean(Points(points.x, points.outputs, points.row, draws))
    for one, h in zip(together, draws, strict=True):
        assert_close(one, term.mean(Points(points.x, points.outputs, points.row, h)))


def test_own_parts_are_of_single_outputs_and_shocks_of_single_inputs(points):
    own, shocks = (some(name).covariance(points, points) for name in ("own part", "shared shocks"))
    assert (own[~points.has_output_of(points)] == 0.0).all()
    assert (own[points.has_output_of(points)] > 0.0).all()
    assert (shocks[~points.has_input_of(points)] == 0.0).all()


@pytest.mark.parametrize("name", NAMES)
def test_new_outputs_have_what_their_latent_vectors_say(points, name):
    term = some(name)
    joined, others = term.joined(2), term.for_outputs(3)
    for ask in ("mean", "variance"):
        assert_close(getattr(joined, ask)(points), getattr(term, ask)(points))
        new = Points(points.x, torch.full_like(points.outputs, 5), points.row, points.h)
        alone = Points(points.x, torch.full_like(points.outputs, 1), points.row, points.h)
        assert_close(getattr(joined, ask)(new), getattr(others, ask)(alone))
    assert joined.negative_log_prior(torch.tensor([4, 5])).eq(0.0).all()
    assert all(len(rows) == 6 for rows in joined.row_parameters())
    assert [len(rows) for rows in joined.constants()] == [6] * (name == "level")


@pytest.mark.parametrize("name", ["level", "own part", "shared shocks", "shared part"])
def test_what_is_an_outputs_own_has_a_prior(name):
    assert some(name).negative_log_prior(torch.tensor([0, 1])).gt(0.0).all()


def test_terms_add_up(points):
    each = [some(name) for name in NAMES]
    terms = Terms(each)
    for ask in ("mean", "slope", "variance"):
        assert_close(getattr(terms, ask)(points), sum(getattr(term, ask)(points) for term in each))
    assert_close(terms.covariance(points, points), sum(term.covariance(points, points) for term in each))
    quiet = terms.variance(points, has_noise=False)
    assert_close(quiet, terms.variance(points) - some("shared shocks").variance(points))
    assert Terms().mean(points).eq(0.0).all()
    assert terms.of(Level) == each[:1]


def test_a_model_without_terms_is_that_of_the_paper(rng):
    """A term of zeros changes nothing."""
    model, batch = worlds.random_model(rng), worlds.whole_batch(worlds.random_grid(rng))
    plain = model.elbo(batch, worlds.generator()).bound
    assert not len(model.terms)
    model.terms.extend([Level(4), Trend(4, 2, 2)])
    assert_close(model.elbo(batch, worlds.generator()).bound, plain)


def test_loadings_begin_at_those_of_factors(points):
    """With latent vectors at the loadings of factors, outputs share what these do."""
    shocks, spread = SharedShocks(4, 2, 3), torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    shocks.loading.follow_factors(spread)
    w = torch.cat([spread[:1].expand(*points.outputs.shape, 1), points.h * spread[1:]], -1)
    assert_close(shocks.variance(points), w.square().sum(-1))


def test_a_factor_that_does_nothing_is_no_trouble(points):
    shocks = SharedShocks(4, 2, 3)
    shocks.loading.follow_factors(torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64))
    assert shocks.negative_log_prior(torch.arange(4)).isfinite().all()


def test_a_step_of_a_deviation_costs_the_same_whatever_its_size():
    """Steps of an optimiser would throw numbers that hardly deviate far out of their prior otherwise."""
    shocks, outputs, h = SharedShocks(4, 2, 3), torch.arange(4), torch.zeros(4, 2, dtype=torch.float64)
    shocks.loading.follow_factors(torch.tensor([0.5, 1e-9, 3.0], dtype=torch.float64))
    before = shocks.loading(outputs, h).detach()
    shocks.loading.deviation.data += 0.1
    assert_close(shocks.negative_log_prior(outputs), torch.full((4,), 0.5 * 3 * 0.1**2, dtype=torch.float64))
    moved = (shocks.loading(outputs, h) - before).detach() / torch.tensor([0.5, 1e-9, 3.0], dtype=torch.float64)
    assert_close(moved, moved[:1, :1].expand(4, 3))
