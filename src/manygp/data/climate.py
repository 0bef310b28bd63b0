"""A generated climate-like table: monthly temperatures of many stations, with gaps and known truth.

The table is made from plausible physics rather than drawn from any model of this library: a seasonal cycle whose
strength and delay follow latitude and distance from the sea, air that cools with altitude (less so in winter), and
weather that drifts eastward and changes as it goes. Waves of many lengths make up the weather, so the table has full
rank, yet neighbouring stations share most of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manygp.errors import SettingError

_Array = NDArray[np.float64]

# The region, in degrees; about 3,300 km from west to east and 2,900 km from south to north.
_SOUTH, _NORTH = 36.0, 62.0
_WEST, _EAST = -6.0, 40.0
_KM_PER_DEGREE = 111.2
_MONTHS_PER_YEAR = 12


@dataclass(frozen=True)
class Stations:
    """Monthly mean temperatures in degrees Celsius, one column for each station.

    Attributes
    ----------
    X
        Months since the first January, shape (n, 1).
    Y
        What was measured, shape (n, p), with NaN for missing cells.
    complete
        What would have been measured without gaps: truth and noise.
    truth
        The temperatures without measurement noise.
    latitude, longitude
        Degrees north and east, shape (p,).
    altitude
        Metres above the sea, shape (p,).
    continentality
        From 0 at the open coast to 1 far inland, shape (p,).
    output_names
        One name for each station.
    """

    X: _Array
    Y: _Array
    complete: _Array
    truth: _Array
    latitude: _Array
    longitude: _Array
    altitude: _Array
    continentality: _Array
    output_names: tuple[str, ...]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """True where a cell is missing, shape (n, p)."""
        return np.isnan(self.Y)


@dataclass(frozen=True)
class _Land:
    """Where the stations are: degrees, kilometres in the plane, metres, and distance from the sea."""

    latitude: _Array
    longitude: _Array
    km: _Array
    altitude: _Array
    continentality: _Array


def make_climate(
    num_stations: int = 2000, num_months: int = 36, missing: float = 0.3, noise: float = 0.3, random_state: int = 0
) -> Stations:
    """Generate a climate-like table with gaps.

    Parameters
    ----------
    num_stations
        Number of stations, the outputs.
    num_months
        Number of months, the inputs.
    missing
        Fraction of missing cells. About half of them are single cells, the others are stations out of order for
        months and whole regions out of order for a season.
    noise
        Standard deviation of the measurement noise, in degrees Celsius.
    random_state
        Seed; the same seed gives the same table.

    Returns
    -------
    Stations
        The table, its truth, and where the stations are.
    """
    if num_stations < 1 or num_months < 1:
        raise SettingError(
            f"num_stations={num_stations} and num_months={num_months} were given; both must be at least 1."
        )
    if not 0 <= missing < 1:
        raise SettingError(f"missing={missing} was given; it must be at least 0 and below 1.")
    if not noise >= 0:
        raise SettingError(f"noise={noise} was given; it must not be negative.")
    # Independent streams: changing the gaps or the noise leaves the weather as it was.
    land_rng, climate_rng, weather_rng, noise_rng, gap_rng = (
        np.random.default_rng(seed) for seed in np.random.SeedSequence(random_state).spawn(5)
    )
    months = np.arange(num_months, dtype=np.float64)
    land = _place_stations(num_stations, land_rng)
    truth = _climate(months, land, climate_rng) + _weather(months, land, weather_rng)
    complete = truth + noise * noise_rng.standard_normal(truth.shape)
    gaps = _gaps(num_months, land.km, missing, gap_rng)
    width = len(str(num_stations - 1))
    return Stations(
        X=months[:, None],
        Y=np.where(gaps, np.nan, complete),
        complete=complete,
        truth=truth,
        latitude=land.latitude,
        longitude=land.longitude,
        altitude=land.altitude,
        continentality=land.continentality,
        output_names=tuple(f"station_{i:0{width}d}" for i in range(num_stations)),
    )


def _place_stations(num_stations: int, rng: np.random.Generator) -> _Land:
    """Scatter stations at random over the land of a random coastline."""
    # Eight candidates for each station: the sea covers about a third, so the first land ones suffice.
    candidates = 8 * num_stations + 64
    latitude = rng.uniform(_SOUTH, _NORTH, candidates)
    longitude = rng.uniform(_WEST, _EAST, candidates)
    middle = np.deg2rad((_SOUTH + _NORTH) / 2)
    east = (longitude - _WEST) * _KM_PER_DEGREE * np.cos(middle)
    km = np.column_stack([east, (latitude - _SOUTH) * _KM_PER_DEGREE])
    # Height above a sea level: rough enough for bays and islands, rising to the east.
    shelf = _waves(km, 450.0, rng) + 1.8 * (east / east.max() - 0.25)
    chosen = np.argsort(shelf <= -0.1, kind="stable")[:num_stations]
    shelf, km = shelf[chosen], km[chosen]
    continentality = 1.0 - np.exp(-np.maximum(shelf + 0.1, 0.0) / 0.9)
    # Mountain ranges are the high crests of a second field; valleys and summits scatter around them.
    crests = np.maximum(_waves(km, 300.0, rng), 0.0) ** 2
    altitude = (90.0 + 900.0 * crests) * rng.lognormal(0.0, 0.45, num_stations)
    altitude = np.minimum(altitude * (0.3 + 0.7 * continentality), 3000.0)
    return _Land(latitude[chosen], longitude[chosen], km, altitude, continentality)


def _climate(months: _Array, land: _Land, rng: np.random.Generator) -> _Array:
    """What each month is like in an average year, shape (n, p)."""
    num_stations = len(land.latitude)
    north = land.latitude - _SOUTH
    year = 2 * np.pi / _MONTHS_PER_YEAR
    # Degrees Celsius at sea level, with a microclimate of a station's own.
    level = 18.5 - 0.62 * north + 0.5 * _waves(land.km, 500.0, rng) + 0.5 * rng.standard_normal(num_stations)
    strength = (4.5 + 8.5 * land.continentality) * (0.85 + 0.012 * north)
    strength = strength * (1.0 - 0.06 * land.altitude / 1000.0)
    # The sea delays the warmest month from mid July to late August.
    warmest = 6.5 + 1.3 * (1.0 - land.continentality)
    first = np.cos(year * (months[:, None] - warmest))
    second = np.cos(2 * year * (months[:, None] - 4.5 - 0.04 * north))
    season = strength * (first + (0.04 + 0.08 * land.continentality) * second)
    # Cold air pools in winter valleys, so temperature falls less with altitude: 4.8 to 6.8 degrees a kilometre.
    lapse = 5.8 + 1.0 * np.cos(year * (months - 5.5))
    warming = 0.03 * months[:, None] / _MONTHS_PER_YEAR
    return level + season - lapse[:, None] * land.altitude / 1000.0 + warming


def _weather(months: _Array, land: _Land, rng: np.random.Generator) -> _Array:
    """Departures from the average year: drifting systems of two sizes, shape (n, p)."""
    wide = _drifting_waves(months, land.km, lengthscale=1000.0, speed=250.0, turnover=0.45, rng=rng)
    narrow = _drifting_waves(months, land.km, lengthscale=380.0, speed=120.0, turnover=0.5, rng=rng)
    # Winter and inland weather swing more than summer and coastal weather.
    winter = np.cos(2 * np.pi * (months - 0.5) / _MONTHS_PER_YEAR)
    swing = (1.0 + 0.4 * winter)[:, None] * (0.7 + 0.6 * land.continentality)
    return swing * (1.5 * wide + 0.6 * narrow)


def _waves(km: _Array, lengthscale: float, rng: np.random.Generator) -> _Array:
    """A random field of unit variance at the given places, shape (p,)."""
    return _drifting_waves(np.zeros(1), km, lengthscale, speed=0.0, turnover=0.0, rng=rng)[0]


def _drifting_waves(
    months: _Array, km: _Array, lengthscale: float, speed: float, turnover: float, rng: np.random.Generator
) -> _Array:
    """A random field of unit variance that moves east at `speed` km a month while its waves change, shape (n, p).

    The field is a sum of plane waves. Student-t wave numbers make it as rough as a Matern-3/2 process, and
    `turnover`, in radians a month, sets how fast its shape is lost beside the drift.
    """
    num_waves = 400
    freedom = rng.chisquare(3.0, num_waves) / 3.0
    wave_numbers = rng.standard_normal((2, num_waves)) / (lengthscale * np.sqrt(freedom))
    frequency = speed * wave_numbers[0] + turnover * rng.standard_normal(num_waves)
    # cos(k·s − ωt) = cos(k·s)cos(ωt) + sin(k·s)sin(ωt): a product of two matrices instead of a cube.
    place = km @ wave_numbers + rng.uniform(0.0, 2 * np.pi, num_waves)
    time = months[:, None] * frequency
    field = np.cos(time) @ np.cos(place).T + np.sin(time) @ np.sin(place).T
    return np.sqrt(2.0 / num_waves) * field


def _gaps(num_months: int, km: _Array, missing: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """True where a cell is missing: regions for a season, stations for months, then single cells."""
    num_stations = len(km)
    gaps = np.zeros((num_months, num_stations), dtype=bool)
    total = round(missing * gaps.size)
    while gaps.sum() < 0.15 * total:
        centre = km[rng.integers(num_stations)]
        near = np.hypot(*(km - centre).T) < rng.uniform(150.0, 350.0)
        gaps[_stretch(num_months, 2, 5, rng), near] = True
    for station in rng.permutation(num_stations):
        if gaps.sum() >= 0.55 * total:
            break
        gaps[_stretch(num_months, 4, 13, rng), station] = True
    # Single cells fill up to the exact number; a region may already have overshot it in a tiny table.
    observed = np.flatnonzero(~gaps)
    single = rng.choice(observed, size=max(total - int(gaps.sum()), 0), replace=False)
    gaps.flat[single] = True
    return gaps


def _stretch(num_months: int, shortest: int, longest: int, rng: np.random.Generator) -> slice:
    """A run of months, at most half of all, with a random start."""
    length = min(int(rng.integers(shortest, longest)), max(num_months // 2, 1))
    start = int(rng.integers(num_months - length + 1))
    return slice(start, start + length)
