"""What a table tells: lengthscales by evidence, rank, scaling, noise, gaps; each fact once, in any order."""

import numpy as np
import pytest

from manygp.data import Cells, Grid, Scaling
from manygp.initialise import Survey, evidence_lengthscales
from manygp.initialise import survey as survey_module
from manygp.initialise.evidence import OutputSample
from manygp.initialise.gaps import Gaps
from manygp.likelihoods import Gaussian, Poisson

from ...laws import worlds


def draws(rng, n=60, p=6, lengthscale=(0.3,), noise=0.1):
    """Independent draws of a GP on inputs in the unit cube."""
    X = rng.uniform(size=(n, len(lengthscale)))
    distance = (((X[:, None] - X[None]) / np.array(lengthscale)) ** 2).sum(-1)
    L = np.linalg.cholesky(np.exp(-0.5 * distance) + 1e-8 * np.eye(n))
    return Grid(X, L @ rng.standard_normal((n, p)) + noise * rng.standard_normal((n, p)))


def low_rank(rng, rank=2, n=40, p=30, missing=0.3):
    Y = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, p)) + 0.05 * rng.standard_normal((n, p))
    Y[rng.uniform(size=Y.shape) < missing] = np.nan
    return Grid(np.arange(float(n))[:, None], Y)


def as_cells(grid):
    row, output = np.nonzero(~np.isnan(grid.Y))
    return Cells(grid.X[row], output, grid.Y[row, output], grid.output_names)


# -- lengthscales ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengthscale", [0.1, 0.5])
def test_lengthscales_and_noise_are_found(rng, lengthscale):
    table = draws(rng, lengthscale=(lengthscale,))
    for source in (table, as_cells(table)):
        scaling = Scaling.fit(source, inputs=True, outputs="none")
        found = evidence_lengthscales(source, scaling, rng)
        assert found.lengthscale[0] * scaling.x_scale[0] == pytest.approx(lengthscale, rel=0.4)
        assert found.noise == pytest.approx(0.01, rel=0.6)
        assert found.signal > 0


def test_an_input_that_does_not_matter_has_a_long_lengthscale(rng):
    table = draws(rng, lengthscale=(0.3, 1e6))
    found = evidence_lengthscales(table, worlds.raw(table), rng)
    assert found.lengthscale[1] > 3 * found.lengthscale[0]


def test_the_noise_does_not_exceed_what_is_known(rng):
    table = draws(rng, noise=0.5)
    assert evidence_lengthscales(table, worlds.raw(table), rng, max_noise=0.01).noise <= 0.01


def test_what_may_as_well_be_noise_is_noise_within_a_tolerance(rng):
    white = Grid(rng.uniform(0.0, 1.0, (80, 1)), rng.standard_normal((80, 6)))
    found = evidence_lengthscales(white, Scaling.fit(white), np.random.default_rng(0), tolerance=0.01)
    short = evidence_lengthscales(white, Scaling.fit(white), np.random.default_rng(0))
    assert found.noise > max(0.8, short.noise)
    assert found.lengthscale[0] > 2.0 * short.lengthscale[0]
    smooth = draws(rng, lengthscale=(0.3,))
    plain = evidence_lengthscales(smooth, worlds.raw(smooth), np.random.default_rng(0))
    close = evidence_lengthscales(smooth, worlds.raw(smooth), np.random.default_rng(0), tolerance=0.01)
    assert close.lengthscale[0] == pytest.approx(plain.lengthscale[0], rel=0.2)


@pytest.mark.parametrize(
    "Y",
    [np.zeros((5, 3)), np.ones((5, 1)), np.array([[1.0]]), np.array([[1.0, np.nan], [np.nan, 2.0]])],
    ids=["zeros", "constant", "one cell", "one cell each"],
)
def test_poor_data_give_usable_numbers(rng, Y):
    table = Grid(np.linspace(0, 1, len(Y))[:, None], Y)
    found = evidence_lengthscales(table, worlds.raw(table), rng, max_noise=0.0)
    assert np.isfinite(found.lengthscale).all()
    assert (found.lengthscale > 0).all()
    assert found.noise > 0
    assert found.signal > 0


def test_the_gradient_of_the_evidence(rng):
    table = draws(rng, lengthscale=(0.3, 0.5))
    Y = np.where(rng.random(table.Y.shape) < 0.3, np.nan, table.Y)
    sample = OutputSample.of(Grid(table.X, Y), worlds.raw(table), rng)
    raw = np.array([-1.0, -0.5, 0.2, -2.0])
    _, gradient = sample.negative_evidence(raw)
    steps = 1e-5 * np.eye(4)
    numeric = [(sample.negative_evidence(raw + e)[0] - sample.negative_evidence(raw - e)[0]) / 2e-5 for e in steps]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5)


# -- rank and scaling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["grid", "cells"])
def test_the_rank_is_that_of_the_data(rng, layout):
    X = rng.uniform(size=(400, 1))
    F = np.column_stack([np.sin(9.0 * X), np.cos(14.0 * X)]) @ rng.standard_normal((2, 20))
    output = rng.integers(20, size=400)
    y = F[np.arange(400), output] + 0.05 * rng.standard_normal(400)
    table = low_rank(rng, n=40, p=20) if layout == "grid" else Cells(X, output, y, range(20))
    survey = worlds.survey_of(table, rng)
    assert 2 <= survey.rank <= 3
    assert survey.choice.held_out_error < 0.05
    factors = survey.factors()
    assert factors.rank == survey.rank
    # Factors know every input row, whatever the layout, and explain its cells.
    assert factors.mean_squared_error(table, survey.scaling, survey.scaling.y_scale) < 0.05
    assert survey.factors() is factors


def test_a_single_output_has_no_factors(rng):
    survey = worlds.survey_of(Grid(rng.uniform(size=(20, 1)), rng.standard_normal((20, 1))), rng)
    assert survey.rank == 1
    assert survey.factors() is None


def test_no_more_factors_than_asked_for(rng):
    assert worlds.survey_of(low_rank(rng, rank=4), rng, max_rank=2).rank == 2


@pytest.mark.parametrize("kind", ["output", "global", "completed"])
@pytest.mark.parametrize("layout", ["grid", "cells"])
def test_a_scaling_that_is_asked_for_is_taken(rng, kind, layout):
    table = low_rank(rng)
    table = table if layout == "grid" else as_cells(table)
    survey = worlds.survey_of(table, rng, standardize=kind)
    assert survey.choice.kind == kind
    if kind != "completed":
        assert np.array_equal(survey.scaling.y_scale, Scaling.fit(table, outputs=kind).y_scale)


def test_nothing_is_scaled_where_that_is_asked_for(rng):
    survey = worlds.survey_of(low_rank(rng), rng, standardize=False)
    assert (survey.scaling.y_scale == 1.0).all()
    assert (survey.scaling.x_scale == 1.0).all()


@pytest.mark.parametrize("layout", ["grid", "cells"])
def test_outputs_in_different_units_are_not_given_one_scale(rng, layout):
    table = low_rank(rng)
    units = 10.0 ** rng.uniform(-3, 3, size=table.num_outputs)
    table = Grid(table.X, table.Y * units)
    survey = worlds.survey_of(table if layout == "grid" else as_cells(table), rng, standardize=True)
    assert survey.choice.kind in ("output", "completed")
    # The rank is that of outputs in the units that a model sees, not of those whose numbers are largest.
    assert survey.rank >= 2 or layout == "cells"


def test_equal_errors_in_outputs_of_unequal_spread_call_for_one_scale(rng):
    """One noise for all cells is what models assume, so the scale follows the errors and not the spread."""
    table = low_rank(rng)
    spread = np.where(np.arange(table.num_outputs) % 2 == 0, 1.0, 8.0)
    Y = table.Y * spread + 0.5 * rng.standard_normal(table.Y.shape)
    assert worlds.survey_of(Grid(table.X, Y), rng, standardize=True).choice.kind == "global"


def test_a_few_cells_tell_no_centres(rng):
    """Completed columns of outputs with three cells have centres far apart, but these are errors for the most part."""
    x = np.sort(rng.uniform(0.0, 10.0, 60))
    waves = np.cos(x[:, None] * rng.standard_normal(200) / 2.5 + rng.uniform(0.0, 2.0 * np.pi, 200)) / 10.0
    F = waves @ rng.standard_normal((200, 3)) @ rng.standard_normal((3, 300)) / np.sqrt(3.0)
    F += 1.5 * rng.standard_normal(300)
    few = np.where(rng.random(F.shape) < 0.95, np.nan, F + 0.2 * rng.standard_normal(F.shape))
    assert worlds.survey_of(Grid(x[:, None], few), rng, standardize=True).choice.kind == "global"


@pytest.mark.parametrize(("apart", "kind"), [(0.1, "global"), (30.0, "centred")])
def test_levels_that_are_far_apart_are_no_functions(rng, apart, kind):
    """With one scale for all, outputs have centres of their own where these differ by more than functions do."""
    table = low_rank(rng)
    spread = np.where(np.arange(table.num_outputs) % 2 == 0, 1.0, 8.0)
    Y = table.Y * spread + 0.5 * rng.standard_normal(table.Y.shape) + apart * rng.standard_normal(table.num_outputs)
    survey = worlds.survey_of(Grid(table.X, Y), rng, standardize=True)
    assert survey.choice.kind == kind
    assert np.ptp(survey.scaling.y_scale) == 0.0
    if kind == "centred":
        # Within a spread of the functions, which gaps are filled with.
        assert np.abs(survey.scaling.y_center - np.nanmean(Y, 0)).max() < 8.0
        assert survey.scaling.y_scale[0] < 10.0


def test_a_table_too_small_to_hold_cells_out(rng):
    survey = worlds.survey_of(Grid(np.zeros((1, 1)), np.array([[1.0, 2.0]])), rng)
    assert survey.rank == 1
    assert np.isfinite(survey.functions(survey.factors()).lengthscale).all()


# -- functions and noise -----------------------------------------------------------------------------------------------


def test_noise_is_a_share_of_the_held_out_error_at_least(rng):
    survey = worlds.survey_of(low_rank(rng), rng, max_rank=1)
    factors = survey.factors(2)
    assert survey.functions(factors).noise == pytest.approx(0.1 * survey.choice.held_out_error)
    assert survey.functions(factors, least_share=0.0).noise < 0.1 * survey.choice.held_out_error


def test_a_list_of_smooth_functions_has_their_lengthscale(rng):
    """Few cells of each output, which by themselves say little: all together tell."""
    X, output = rng.uniform(size=(800, 1)), rng.integers(100, size=800)
    F = np.column_stack([np.sin(30.0 * X), np.cos(20.0 * X)]) @ rng.standard_normal((2, 100))
    table = Cells(X, output, F[np.arange(800), output] + 0.05 * rng.standard_normal(800), range(100))
    survey = worlds.survey_of(table, rng)
    found = survey.functions(survey.factors())
    assert 0.02 < found.lengthscale[0] * survey.scaling.x_scale[0] < 0.15
    assert found.noise < 0.02


def noisy(rng, deviation, n=60, p=40):
    """Two factors, and noise whose log variance differs between outputs by draws of so large a deviation."""
    log_noise = deviation * rng.standard_normal(p)
    noise = 0.3 * np.exp(0.5 * log_noise) * rng.standard_normal((n, p))
    return log_noise, Grid(np.arange(float(n))[:, None], low_rank(rng, 2, n, p, 0.0).Y + noise)


def test_unequal_noise_is_seen_and_equal_noise_is_not_made_unequal(rng):
    log_noise, table = noisy(rng, 1.0)
    survey = worlds.survey_of(table, rng)
    spread = survey.noise_spread(survey.factors(2))
    assert not spread.is_negligible
    assert 0.5 < spread.variance < 2.0
    assert np.corrcoef(spread.deviation, log_noise)[0, 1] > 0.9
    _, table = noisy(rng, 0.0)
    survey = worlds.survey_of(table, rng)
    assert survey.noise_spread(survey.factors(2)).is_negligible


def test_few_outputs_may_have_any_noise(rng):
    _, table = noisy(rng, 1.0, p=3)
    survey = worlds.survey_of(table, rng)
    spread = survey.noise_spread(survey.factors(2))
    assert spread.variance == 1.0
    assert not spread.deviation.any()


# -- the survey itself -------------------------------------------------------------------------------------------------


def test_the_order_of_questions_changes_nothing(rng):
    table = low_rank(rng)
    first, second = (worlds.survey_of(table, np.random.default_rng(3), standardize=True) for _ in range(2))
    assert first.gaps == second.gaps
    found = first.functions(first.factors())
    again = second.functions(second.factors())
    assert found.noise == again.noise
    third = worlds.survey_of(table, np.random.default_rng(3), standardize=True)
    _ = third.own_functions, third.noise_spread(third.factors())
    assert np.array_equal(third.functions(third.factors()).lengthscale, found.lengthscale)


def test_every_fact_is_computed_once(rng, monkeypatch):
    calls = []
    rehearse = survey_module.rehearse
    monkeypatch.setattr(survey_module, "rehearse", lambda *given: calls.append(1) or rehearse(*given))
    survey = worlds.survey_of(low_rank(rng), rng)
    _ = survey.rank, survey.scaling, survey.choice, str(survey)
    assert len(calls) == 1


@pytest.mark.parametrize("layout", ["grid", "cells", "counts", "one output"])
def test_it_can_be_read(rng, layout):
    table, likelihood = low_rank(rng), Gaussian()
    if layout == "cells":
        table = as_cells(table)
    elif layout == "counts":
        table, likelihood = Grid(table.X, rng.poisson(3.0, table.Y.shape).astype(float)), Poisson()
    elif layout == "one output":
        table = Grid(table.X, table.Y[:, :1])
    text = str(Survey(table, likelihood, rng))
    assert "rank" in text
    assert "lengthscales" in text
    assert ("levels of f" in text) == (layout == "counts")


def test_scattered_gaps_and_stretches(rng):
    X, Y = np.arange(200.0)[:, None], np.zeros((200, 10))
    assert "no cell is missing" in str(Gaps.of(Grid(X, Y), rng))
    scattered = np.where(rng.random(Y.shape) < 0.3, np.nan, Y)
    gaps = Gaps.of(Grid(X, scattered), rng)
    assert gaps.is_scattered
    assert gaps.share == pytest.approx(0.3, abs=0.05)
    lost = Y.copy()
    lost[50:110] = np.nan
    gaps = Gaps.of(Grid(X, lost), rng)
    assert not gaps.is_scattered
    assert gaps.longest == pytest.approx(0.3)
    assert gaps.cells_per_output == (140, 140, 140)


@pytest.mark.parametrize("layout", ["grid", "cells"])
def test_pseudo_values_of_counts(rng, layout):
    Y = rng.poisson([1.0, 20.0, 100.0], size=(60, 3)).astype(float)
    table = Grid(np.linspace(0, 1, 60)[:, None], Y)
    survey = Survey(table if layout == "grid" else as_cells(table), Poisson(), rng)
    np.testing.assert_allclose(survey.levels, np.log([1.0, 20.0, 100.0]), atol=0.3)
    _, output, f = survey.values.cells(survey.values.places())
    # Pseudo-values are centred, and vary like the logarithms of the counts.
    np.testing.assert_allclose(np.bincount(output, f) / 60, 0.0, atol=1e-9)
    assert f[output == 2].std() < f[output == 0].std()
