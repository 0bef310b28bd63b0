"""The generated climate table is plausible, has the gaps it promises, and repeats with its seed."""

import numpy as np
import pytest

from manygp.data.climate import Stations, make_climate
from manygp.errors import SettingError


@pytest.fixture(scope="module")
def stations() -> Stations:
    return make_climate()


def test_default_size_and_units(stations: Stations) -> None:
    assert stations.X.shape == (36, 1)
    assert stations.Y.shape == stations.truth.shape == stations.complete.shape == (36, 2000)
    assert len(set(stations.output_names)) == 2000
    assert stations.latitude.shape == stations.longitude.shape == stations.altitude.shape == (2000,)
    assert -40 < stations.truth.min() < stations.truth.max() < 45
    assert stations.altitude.min() >= 0
    assert stations.continentality.min() >= 0
    assert stations.continentality.max() <= 1


def test_three_tenths_are_missing_singly_and_in_blocks(stations: Stations) -> None:
    missing = stations.missing
    assert missing.mean() == pytest.approx(0.3, abs=1e-4)
    assert (~missing).sum(axis=0).min() >= 1
    # A run of four missing cells is rare (0.8%) when 30% are missing independently.
    run = missing[:-3] & missing[1:-2] & missing[2:-1] & missing[3:]
    assert run.mean() > 0.03
    alone = missing[1:-1] & ~missing[:-2] & ~missing[2:]
    assert alone.sum() > 2000


def test_observed_cells_are_the_complete_table(stations: Stations) -> None:
    seen = ~stations.missing
    np.testing.assert_array_equal(stations.Y[seen], stations.complete[seen])
    assert np.std(stations.complete - stations.truth) == pytest.approx(0.3, rel=0.02)


def test_latitude_altitude_and_sea_act_as_they_should(stations: Stations) -> None:
    mean = stations.truth.mean(axis=0)
    causes = np.column_stack([np.ones(2000), stations.latitude, stations.altitude / 1000])
    _, per_degree, per_km = np.linalg.lstsq(causes, mean, rcond=None)[0]
    assert -0.9 < per_degree < -0.3
    assert -7 < per_km < -4.5
    swing = stations.truth[6:36:12].mean(axis=0) - stations.truth[0:36:12].mean(axis=0)
    assert swing.min() > 0
    assert np.corrcoef(swing, stations.continentality)[0, 1] > 0.7


def test_weather_is_shared_by_neighbours_and_not_low_rank(stations: Stations) -> None:
    weather = stations.truth[12:24] - stations.truth[0:12]
    places = np.column_stack([stations.longitude, stations.latitude])
    distance = np.linalg.norm(places - places[0], axis=1)
    order = np.argsort(distance)
    correlation = np.corrcoef(weather.T)[0]
    assert correlation[order[1:6]].mean() > 0.8
    assert abs(correlation[order[-200:]].mean()) < correlation[order[1:6]].mean()
    spread = np.linalg.svd(stations.truth - stations.truth.mean(axis=0), compute_uv=False) ** 2
    assert np.sqrt(spread[6:].sum() / stations.truth.size) > 0.3


def test_seed_repeats_and_gaps_leave_the_weather_alone() -> None:
    first, again = make_climate(30, 12, random_state=3), make_climate(30, 12, random_state=3)
    np.testing.assert_array_equal(first.Y, again.Y)
    other = make_climate(30, 12, missing=0.5, random_state=3)
    np.testing.assert_array_equal(first.complete, other.complete)
    assert other.missing.mean() == pytest.approx(0.5, abs=0.01)
    assert not np.array_equal(first.truth, make_climate(30, 12, random_state=4).truth)


def test_tiny_and_gapless_tables() -> None:
    assert make_climate(1, 1, missing=0.0).Y.shape == (1, 1)
    assert not make_climate(5, 4, missing=0.0).missing.any()


@pytest.mark.parametrize(
    "setting", [{"num_stations": 0}, {"num_months": 0}, {"missing": 1.0}, {"missing": -0.1}, {"noise": -1.0}]
)
def test_silly_settings_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        make_climate(**setting)  # type: ignore[arg-type]
