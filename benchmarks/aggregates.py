"""Sums of gaps with their errors: how often 90% intervals cover, beside sums of independent variances, and the cost.

`python -m benchmarks.aggregates [ersst-random ersst-block climate visium cost ...] [--stride 2] [--stations 500]
[--genes 200] [--epochs N] [--cells 100000] [--draws 200] [--seed 0]` prints one line for each. Tables: monthly sea
surface temperatures with half of the cells missing at random or regions lost for months (means of 20 regions x 24
months over what is missing there); the stations of the demo (yearly means of each station's missing months); a slice of
cortex (means over 50 genes in each spot). Data sets are found where `manygp paper` finds them (`MANYGP_DATA`). With
`cost`, seconds and peak memory of joint draws and of sums of generated cells.
"""

import argparse
import os
import resource
import time
from pathlib import Path

import numpy as np
from scipy import sparse

import manygp
from manygp.data.climate import make_climate

DATA = Path(os.environ.get("MANYGP_DATA", "data"))


def sea_temperatures(stride: int, months: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Months, temperatures (n, p) and places (p, 2) of cells of the sea."""
    import netCDF4

    with netCDF4.Dataset(DATA / "ersstv5_2010_2020.nc") as file:
        north, east = (np.asarray(file[name][:], dtype=float)[::stride] for name in ("lat", "lon"))
        field = np.ma.filled(file["sst"][-months:, ::stride, ::stride], np.nan).astype(float)
    places = np.stack(np.meshgrid(north, east, indexing="ij"), -1).reshape(-1, 2)
    values = field.reshape(months, -1)
    sea = np.isfinite(values).all(0) & (np.abs(places[:, 0]) < 60)
    return np.arange(float(months))[:, None], values[:, sea], places[sea]


def regions(places: np.ndarray, count: int) -> np.ndarray:
    """The number of a region of about equal size for every place, by cuts along latitude and longitude."""
    rows = 4
    band = np.minimum((np.argsort(np.argsort(places[:, 0])) * rows) // len(places), rows - 1)
    label = np.empty(len(places), dtype=int)
    for r in range(rows):
        own = np.flatnonzero(band == r)
        rank = np.argsort(np.argsort(places[own, 1]))
        label[own] = r * (count // rows) + np.minimum(rank * (count // rows) // len(own), count // rows - 1)
    return label


def lost_blocks(n: int, places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Whole neighbourhoods lost for a few months, until three tenths of the cells are."""
    gaps = np.zeros((n, len(places)), dtype=bool)
    while gaps.mean() < 0.3:
        near = np.hypot(*(places - places[rng.integers(len(places))]).T) < rng.uniform(8.0, 20.0)
        first = rng.integers(n)
        gaps[first : first + rng.integers(2, 6), near] = True
    return gaps


def report(name: str, Y: np.ndarray, gaps: np.ndarray, groups: np.ndarray, dist: manygp.Prediction, fit: float) -> None:
    """Cover of 90% intervals of sums over the gaps of each group, jointly and with independent variances."""
    number = np.where(gaps, groups, -1).reshape(-1)
    chosen = np.flatnonzero(number >= 0)
    distinct, group = np.unique(number[chosen], return_inverse=True)
    count = np.bincount(group)
    W = sparse.csr_array((1.0 / count[group], (group, chosen)), shape=(len(distinct), gaps.size))
    start = time.process_time()
    sums = dist.aggregate(W, num_draws=200)
    seconds = time.process_time() - start
    lower, upper = sums.interval(0.9)
    truth = W @ Y.reshape(-1)
    alone = np.sqrt(W.power(2) @ dist.variance.reshape(-1))
    joint = np.mean((truth >= lower) & (truth <= upper))
    independent = np.mean(np.abs(truth - sums.mean) <= 1.645 * alone)
    cells = np.abs(Y - dist.mean)[gaps] <= 1.645 * dist.std[gaps]
    print(
        f"{name}: {len(distinct)} sums of {count.mean():.0f} cells: joint intervals cover {joint:.3f}, independent "
        f"{independent:.3f}; single cells {cells.mean():.3f}; std is {np.median(sums.std / alone):.1f} x independent; "
        f"error rms {np.sqrt(np.mean((truth - sums.mean) ** 2)):.4g}; fit {fit:.0f} s, sums {seconds:.1f} s of CPU",
        flush=True,
    )


def fitted(X: np.ndarray, Y: np.ndarray, epochs: int | None, **settings: object) -> tuple[manygp.TLVMOGP, float]:
    """A model with its defaults, and the seconds that it took."""
    start = time.process_time()
    model = manygp.TLVMOGP(epochs="auto" if epochs is None else epochs, progress=False, **settings).fit(X, Y)
    return model, time.process_time() - start


def ersst(kind: str, options: argparse.Namespace) -> None:
    """Means of regions of the sea in single months."""
    X, Y, places = sea_temperatures(options.stride)
    rng = np.random.default_rng(options.seed)
    gaps = rng.uniform(size=Y.shape) < 0.5 if kind == "random" else lost_blocks(len(Y), places, rng)
    model, fit = fitted(X, np.where(gaps, np.nan, Y), options.epochs)
    groups = np.arange(len(Y))[:, None] * 20 + regions(places, 20)
    report(f"ersst-{kind} ({Y.shape[0]} x {Y.shape[1]})", Y, gaps, groups, model.predict_dist(X), fit)


def climate(options: argparse.Namespace) -> None:
    """Years of stations."""
    stations = make_climate(options.stations, random_state=options.seed)
    model, fit = fitted(stations.X, stations.Y, options.epochs)
    Y, gaps = stations.complete, np.isnan(stations.Y)
    groups = np.arange(Y.shape[1]) * 100 + np.arange(len(Y))[:, None] // 12
    report(
        f"climate ({Y.shape[0]} x {Y.shape[1]}), years of stations",
        Y,
        gaps,
        groups,
        model.predict_dist(stations.X),
        fit,
    )


def visium(options: argparse.Namespace) -> None:
    """Counts of fifty genes of a spot."""
    from manygp.paper.counts import load_visium_dlpfc

    problem = load_visium_dlpfc(DATA / "visium_dlpfc_151673.h5ad", options.seed, options.genes)
    X, train = problem.train.X, problem.train
    rng = np.random.default_rng(options.seed)
    spots = np.sort(rng.choice(len(X), min(len(X), options.spots), replace=False))
    every = np.arange(train.num_outputs)
    Y = np.where(np.isnan(a := train.block(spots, every)), problem.test.block(spots, every), a)
    gaps = rng.uniform(size=Y.shape) < 0.3
    observed = np.where(gaps, np.nan, Y)
    start = time.process_time()
    model = manygp.TLVMOGP(likelihood="negative-binomial", epochs=options.epochs or "auto", progress=False)
    model.fit(X[spots], observed, exposure="auto")
    fit = time.process_time() - start
    groups = np.arange(len(Y))[:, None] * 1000 + np.arange(Y.shape[1]) // 50
    dist = model.predict_dist(X[spots], exposure=model.exposure_)
    report(f"visium ({Y.shape[0]} x {Y.shape[1]}), 50 genes of a spot", Y, gaps, groups, dist, fit)


def cost(options: argparse.Namespace) -> None:
    """Draws and sums of many cells from a model that was fitted to a few: what they take does not depend on the fit."""
    rng = np.random.default_rng(0)
    n = 30
    p = max(options.cells // n, 1)
    X = np.linspace(0.0, 1.0, n)[:, None]
    Y = np.sin(5 * X + rng.uniform(0, 2, p)) + 0.1 * rng.standard_normal((n, p))
    Y[rng.uniform(size=Y.shape) < 0.3] = np.nan
    for name, settings in {"neighbours": {}, "inducing points": {"num_neighbors": 0}}.items():
        model, fit = fitted(X, Y, options.epochs or 2, latent_dim=3, num_inducing=150, **settings)
        dist = model.predict_dist(X)
        start = time.process_time()
        dist.sample(options.draws)
        drawn = time.process_time() - start
        start = time.process_time()
        sums = dist.mean_over("output", by=np.arange(p) % 4)
        summed = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"cost, {name}: {n} x {p} cells, {options.draws} draws {drawn:.1f} s, {len(sums)} sums {summed:.1f} s "
            f"of CPU, peak {peak:.2f} GB in all; fit {fit:.0f} s",
            flush=True,
        )


def main() -> None:
    """Run the jobs that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = {
        "ersst-random": lambda o: ersst("random", o),
        "ersst-block": lambda o: ersst("block", o),
        "climate": climate,
        "visium": visium,
        "cost": cost,
    }
    parser.add_argument("jobs", nargs="*", metavar="job", help=", ".join(jobs))
    for name, value in {
        "stride": 2,
        "stations": 500,
        "genes": 200,
        "spots": 400,
        "cells": 100_000,
        "draws": 200,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.jobs or jobs:
        jobs[name](options)


if __name__ == "__main__":
    main()
