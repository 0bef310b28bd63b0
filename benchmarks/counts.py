"""Held-out counts of a tissue section: T-LVMOGP beside simpler ways to predict them.

`python -m benchmarks.counts [--quick] [--genes 1000] [--seeds 3]` reads visium_dlpfc_151673.h5ad (2,929 spots) from the
folder that the environment variable MANYGP_DATA names, keeps the genes whose log counts vary most, hides a tenth of the
cells at random and prints one JSON line: negative log probability of the hidden counts, share of them inside 90%
intervals, seconds and peak memory, mean over seeds. All methods know the same size factor of a spot, estimated from the
cells that are left.

The rivals: a zero-inflated negative binomial for every gene, by maximum likelihood ("gene"); a kernel smoother for
every gene, negative binomial, its bandwidth chosen by further hidden cells ("smoother"); the same model with Poisson
counts ("poisson"). `--only` runs some of the methods, `--epochs` sets the passes of the models.
"""

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import torch
from torch import Tensor

import manygp
from manygp.data import Grid
from manygp.data.exposure import size_factors

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
MODELS = {"zinb": "zinb", "nb": "negative-binomial", "poisson": "poisson"}
METHODS = ("gene", "smoother", *MODELS)
# Bandwidths of the smoother in distances between neighbouring spots; the last is as good as none.
BANDWIDTHS = (0.6, 1.0, 1.5, 2.5, 4.0, 7.0, 12.0, 1e6)
# What a smoothed rate is drawn to the gene's own by, in spots.
PRIOR_SPOTS = 0.5


def read_counts(num_genes: int) -> tuple[FloatArray, FloatArray]:
    """Places of the spots in distances between neighbours (n, 2), and counts of the most variable genes (n, p)."""
    data = anndata.read_h5ad(Path(os.environ["MANYGP_DATA"]) / "visium_dlpfc_151673.h5ad")
    logs = data.X.astype(np.float64)
    logs.data = np.log1p(logs.data)
    variance = np.asarray(logs.multiply(logs).mean(0) - np.square(logs.mean(0))).ravel()
    genes = np.sort(np.argsort(-variance)[:num_genes])
    places = np.asarray(data.obsm["spatial"], dtype=np.float64)
    nearest = [np.sort(np.hypot(*(places - place).T))[1] for place in places[::50]]
    return places / np.median(nearest), data.X[:, genes].toarray().astype(np.float64)


class Split:
    """Counts with a tenth of the cells hidden, and the size factors that the others show."""

    def __init__(self, X: FloatArray, Y: FloatArray, seed: int):
        self.X, self.Y = X, Y
        self.hidden = np.random.default_rng(seed).random(Y.shape) < 0.1
        self.train, self.test = np.where(self.hidden, np.nan, Y), np.where(self.hidden, Y, np.nan)
        self.exposure = size_factors(Grid(X, self.train))


# -- rivals ------------------------------------------------------------------------------------------------------------


def zinb_log_prob(y: Tensor, m: Tensor, alpha: Tensor, zeros: Tensor | None = None) -> Tensor:
    """log p(y) of a negative binomial of mean m and variance m + αm², zero in a further share of cells."""
    r = 1.0 / alpha
    log_prob = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1.0) - (y + r) * torch.log1p(m / r)
    log_prob = log_prob + torch.xlogy(y, m / r)
    if zeros is None:
        return log_prob
    rest = torch.log1p(-zeros) + log_prob
    return torch.where(y == 0.0, torch.logaddexp(zeros.log(), rest), rest)


def maximise(log_lik: Callable[..., Tensor], parameters: list[Tensor], steps: int = 80) -> list[Tensor]:
    """Parameters of all genes at once that maximise a sum over genes, by Adam with a falling rate."""
    parameters = [parameter.clone().requires_grad_() for parameter in parameters]
    optimizer = torch.optim.Adam(parameters, lr=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (-log_lik(*parameters)).backward()
        optimizer.step()
        schedule.step()
    return [parameter.detach() for parameter in parameters]


def coverage(log_prob: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """Share of every count's probability that lies inside the central 90%, as `Prediction.score` has it."""
    below, mass = torch.zeros_like(y), torch.zeros_like(y)
    for k in range(int(y.max()) + 1):
        here = log_prob(torch.full_like(y, float(k))).exp()
        below += here * (y > k)
        mass += here * (y == k)
        if k > 200:
            # The few larger counts are outside, or nearly so.
            break
    inside = (below + mass).clamp(max=0.95) - below.clamp(min=0.05)
    return (inside / mass.clamp(min=1e-12)).clamp(0.0, 1.0)


class Tally:
    """Sums over hidden cells, some genes at a time."""

    def __init__(self) -> None:
        self.sums = np.zeros(3)

    def add(self, log_prob: Callable[[Tensor], Tensor], y: Tensor) -> None:
        """Count hidden cells in, given their log probability as a function of the value."""
        self.sums += (-float(log_prob(y).sum()), float(coverage(log_prob, y).sum()), len(y))

    def scores(self) -> dict[str, float]:
        """Means."""
        return {"nll": self.sums[0] / self.sums[2], "coverage90": self.sums[1] / self.sums[2]}


def gene_chunks(split: Split, width: int = 100) -> list[slice]:
    """Slices of the genes that are worked on together."""
    return [slice(begin, begin + width) for begin in range(0, split.Y.shape[1], width)]


def gene_rival(split: Split, _: argparse.Namespace) -> dict[str, float]:
    """Rate, dispersion and share of extra zeros of every gene, by maximum likelihood."""
    tally, exposure = Tally(), torch.as_tensor(split.exposure)[:, None]
    for genes in gene_chunks(split):
        y, hidden = torch.as_tensor(split.Y[:, genes]), torch.as_tensor(split.hidden[:, genes])
        seen = (~hidden).double()
        rate = ((y * seen).sum(0) + 0.5) / (exposure * seen).sum(0)

        def log_probs(y: Tensor, log_rate: Tensor, log_alpha: Tensor, zeros: Tensor, e: Tensor) -> Tensor:
            return zinb_log_prob(y, e * log_rate.exp(), log_alpha.clamp(-12.0, 5.0).exp(), torch.sigmoid(zeros))

        start = [rate.log(), torch.full_like(rate, -1.0), torch.full_like(rate, -4.0)]
        found = maximise(lambda *p, y=y, seen=seen: (log_probs(y, *p, exposure) * seen).sum(), start)  # type: ignore[misc]
        row, column = hidden.nonzero(as_tuple=True)
        at = [parameter[column] for parameter in found]
        tally.add(lambda y, at=at, row=row: log_probs(y, *at, exposure[row, 0]), y[row, column])  # type: ignore[misc]
    return tally.scores()


def smoother_rival(split: Split, _: argparse.Namespace) -> dict[str, float]:
    """Rates of every gene averaged over neighbouring spots; bandwidth and dispersion by further hidden cells."""
    square = torch.as_tensor(((split.X[:, None, :] - split.X[None, :, :]) ** 2).sum(-1))
    weights = [torch.exp(-0.5 * square / width**2) for width in BANDWIDTHS]
    exposure, tally = torch.as_tensor(split.exposure)[:, None], Tally()
    generator = torch.Generator().manual_seed(0)
    for genes in gene_chunks(split):
        y, hidden = torch.as_tensor(split.Y[:, genes]), torch.as_tensor(split.hidden[:, genes])
        further = ~hidden & (torch.rand(y.shape, generator=generator) < 0.1)

        def smoothed(w: Tensor, seen: Tensor, y: Tensor = y) -> Tensor:
            own = ((y * seen).sum(0) + 0.5) / (exposure * seen).sum(0)
            return (w @ (y * seen) + PRIOR_SPOTS * own) / (w @ (exposure * seen) + PRIOR_SPOTS)

        fit = (~hidden & ~further).double()
        at, of = further.nonzero(as_tuple=True)
        best, log_alpha, choice = torch.full((y.shape[1],), -np.inf, dtype=torch.float64), None, None
        for i, w in enumerate(weights):
            # Dispersion by the further cells too, since at the others the smoother has seen the count itself.
            m, own = (exposure * smoothed(w, fit))[at, of], y[at, of]

            def log_probs(log_alpha: Tensor, m: Tensor = m, own: Tensor = own, of: Tensor = of) -> Tensor:
                return zinb_log_prob(own, m, log_alpha.clamp(-12.0, 5.0).exp()[of])

            (found,) = maximise(lambda a, f=log_probs: f(a).sum(), [torch.full_like(best, -1.0)])  # type: ignore[misc]
            score = torch.zeros_like(best).index_add_(0, of, log_probs(found))
            better = score > best
            best = torch.where(better, score, best)
            log_alpha = found if log_alpha is None else torch.where(better, found, log_alpha)
            choice = torch.zeros_like(better, dtype=torch.long) if choice is None else torch.where(better, i, choice)
        assert choice is not None
        assert log_alpha is not None
        final = torch.stack([smoothed(w, (~hidden).double()) for w in weights])
        row, column = hidden.nonzero(as_tuple=True)
        m, alpha = exposure[row, 0] * final[choice[column], row, column], log_alpha[column].exp()
        tally.add(lambda y, m=m, alpha=alpha: zinb_log_prob(y, m, alpha), y[row, column])  # type: ignore[misc]
    return tally.scores()


# -- the model ---------------------------------------------------------------------------------------------------------


def model_scores(split: Split, likelihood: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores of T-LVMOGP."""
    model = manygp.TLVMOGP(
        likelihood=likelihood,
        num_inducing=arguments.inducing,
        latent_dim=arguments.latent_dim or "auto",
        epochs=arguments.epochs or "auto",
        batch_outputs=arguments.batch_outputs or "auto",
        num_samples=10,
        random_state=seed,
        progress=False,
    ).fit(split.X, split.train, exposure=split.exposure)
    fitted = time.perf_counter()
    row, column = np.nonzero(split.hidden)
    dist = model.predict_cells(split.X[row], column, exposure=split.exposure[row])
    scores = dist.score(split.Y[row, column])
    cells = np.isfinite(split.train).sum()
    return {
        "nll": scores["nll"],
        "coverage90": scores["coverage90"],
        "seconds_per_epoch": model.history_.seconds / len(model.history_),
        "score_seconds": time.perf_counter() - fitted,
        "epochs": len(model.history_),
        "latent_dim": model.latent_mean_.shape[1],
        "bound_per_cell": model.history_["bound"][-1] / cells,
    }


def run(method: str, X: FloatArray, Y: FloatArray, arguments: argparse.Namespace) -> dict[str, Any]:
    """Means over seeds, with the spread of the first."""
    results = []
    for seed in range(arguments.seeds):
        split, started = Split(X, Y, seed), time.perf_counter()
        if method == "gene":
            scores: dict[str, Any] = gene_rival(split, arguments)
        elif method == "smoother":
            scores = smoother_rival(split, arguments)
        else:
            scores = model_scores(split, MODELS[method], seed, arguments)
        results.append(scores | {"seconds": time.perf_counter() - started})
    means = {key: round(float(np.mean([result[key] for result in results])), 4) for key in results[0]}
    return means | {"nll_sd": round(float(np.std([result["nll"] for result in results])), 4)}


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 genes, one seed, 10 epochs")
    parser.add_argument("--genes", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--inducing", type=int, default=200)
    parser.add_argument("--latent-dim", type=int, default=0, help="0 lets the model choose")
    parser.add_argument("--epochs", type=int, default=0, help="0 lets the model choose")
    parser.add_argument("--batch-outputs", type=int, default=0, help="0 lets the model choose")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=["gene", "smoother", "poisson", "zinb"])
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.genes, arguments.seeds, arguments.epochs = 50, 1, 10
    X, Y = read_counts(arguments.genes)
    methods = {method: run(method, X, Y, arguments) for method in arguments.only}
    print(
        json.dumps(
            {
                "benchmark": "counts",
                "spots": len(X),
                "genes": Y.shape[1],
                "zeros": round(float((Y == 0).mean()), 3),
                "seeds": arguments.seeds,
                "num_inducing": arguments.inducing,
                "threads": torch.get_num_threads(),
                "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
                **methods,
            }
        )
    )


if __name__ == "__main__":
    main()
