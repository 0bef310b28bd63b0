"""A GP over coordinates of the outputs: what neighbours say about the numbers that belong to an output."""

import itertools
import math

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from manygp.data.coordinates import CoordinateMap
from manygp.linalg import safe_cholesky

__all__ = ["CoordinatePrior"]

# Neighbours that a conditional looks at, subsets of as many neighbours by which parameters are found, and cells of the
# arrays that are worked on at once.
_NEIGHBOURS, _SUBSETS, _CHUNK_NUMBERS = 48, 24, 4_000_000
# What is tried: smoothness; lengthscales in distances of nearest neighbours; nuggets and degrees of freedom of the
# local variance. More groups of features than this share their lengthscale.
_SMOOTHNESS = (0.5, 1.5, 2.5)
_LENGTHSCALES = tuple(2.0**k for k in range(9))
_NUGGETS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 3.0)
_FREEDOMS = (3.0, 10.0, 30.0, 100.0, 1e4)
_COARSE, _FINE, _MAX_GROUPS = (0.25, 0.5, 1.0, 2.0, 4.0), (0.5**0.5, 1.0, 2.0**0.5), 5
# A number of which less is known than this share of its spread tells nothing about the parameters.
_KNOWN = 0.5
_VARIANCE_STEPS = 30


class CoordinatePrior(nn.Module):
    """Independent GPs over the coordinates of outputs, one for each column of numbers that outputs have.

    Column c of output p is μ + g_c(s_p) + ε, with g_c a Matern GP whose variance differs between regions and ε an
    independent part. A conditional looks at the nearest neighbours alone, estimates their mean by generalised least
    squares (ordinary kriging) and their variance by an inverse gamma prior whose spread comes from the data. Cost is
    linear in the number of outputs, O(k³) for each with k neighbours, and all outputs are one batch.

    Parameters
    ----------
    coordinates
        The map from coordinates to features, in which distances mean something.
    num_outputs, num_columns
        Number of outputs, and of columns that each has.
    """

    features: Tensor
    weight: Tensor
    parameters_of: Tensor

    def __init__(self, coordinates: CoordinateMap, num_outputs: int, num_columns: int):
        super().__init__()
        self.map, self.groups = coordinates, coordinates.groups
        width = sum(map(len, self.groups))
        self.register_buffer("features", torch.zeros(num_outputs, width, dtype=torch.float64))
        self.register_buffer("weight", torch.ones(width, dtype=torch.float64))
        # Rows: variance, smoothness, lengthscale, nugget relative to the variance, degrees of freedom of the variance.
        start = torch.tensor([1.0, 1.5, 1.0, 0.1, 10.0], dtype=torch.float64)
        self.register_buffer("parameters_of", start.unsqueeze(-1).repeat(1, num_columns))

    # -- conditionals --------------------------------------------------------------------------------------------

    def conditional(
        self,
        values: Float[Tensor, "p c"],
        noise: Float[Tensor, "p c"],
        features: Float[Tensor, "k f"] | None = None,
        neighbours: int = _NEIGHBOURS,
    ) -> tuple[Float[Tensor, "k c"], Float[Tensor, "k c"]]:
        """Mean and variance of the columns of new outputs with some features; of every output from the others if None.

        Parameters
        ----------
        values, noise
            What is known of the outputs here: numbers and the variances of their errors.
        features
            Of the outputs asked for.
        neighbours
            Number of neighbours to look at.
        """
        places = self.features * self.weight
        targets = places if features is None else features * self.weight
        near = _neighbours(places, targets, neighbours, features is None)
        mean, variance = (
            values.new_empty(len(targets), values.shape[1]),
            values.new_empty(len(targets), values.shape[1]),
        )
        if near.shape[1] == 0:
            return mean.zero_(), self.parameters_of[0] * (1.0 + self.parameters_of[3].expand_as(mean))
        size = max(1, _CHUNK_NUMBERS // near.shape[1] ** 2)
        for begin in range(0, len(targets), size):
            rows = slice(begin, begin + size)
            x, at = places[near[rows]], targets[rows].unsqueeze(1)
            D, d = _distances(x, x), _distances(x, at)[..., 0]
            for c in range(values.shape[1]):
                mean[rows, c], variance[rows, c] = _krige(
                    D, d, values[near[rows], c], noise[near[rows], c], self.parameters_of[:, c]
                )
        return mean, variance

    # -- parameters ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def learn(
        self,
        values: Float[Tensor, "p c"],
        noise: Float[Tensor, "p c"],
        seed: int,
        freedoms: tuple[float, ...] = _FREEDOMS,
    ) -> None:
        """Parameters of every column by the evidence of subsets of neighbours, and weights of features.

        Degrees of freedom of the local variance are chosen among those given; a very large one is the same variance
        everywhere.
        """
        spread = values.var(0, unbiased=False)
        known = torch.nonzero((noise < _KNOWN * spread).all(-1))[:, 0]
        known = torch.arange(len(values), device=values.device) if len(known) < _NEIGHBOURS else known
        if len(known) < 3:
            return
        rng = np.random.default_rng(seed)
        centers = known[torch.as_tensor(rng.permutation(len(known))[:_SUBSETS], device=known.device)]
        places = self.features[known]
        subsets = known[_neighbours(places, self.features[centers], _NEIGHBOURS, False)]
        y = values[subsets]
        if 1 < len(self.groups) <= _MAX_GROUPS:
            self._learn_weights(subsets, y)
        best = self._best(self.features[subsets] * self.weight, y, _SMOOTHNESS, _NUGGETS, freedoms)
        self.parameters_of.copy_(best[1:])

    def _learn_weights(self, subsets: Int[Tensor, "s k"], y: Float[Tensor, "s k c"]) -> None:
        """One weight of each group of features after the other, by the evidence of all columns together."""
        for factors, group in itertools.product((_COARSE, _COARSE, _FINE), self.groups[1:]):
            before, scores = self.weight[group].clone(), []
            for factor in factors:
                self.weight[group] = factor * before
                tried = self._best(
                    self.features[subsets] * self.weight, y, _SMOOTHNESS[1:2], _NUGGETS[2::2], _FREEDOMS[1::2]
                )
                scores.append(float(tried[0].sum()))
            self.weight[group] = factors[int(np.argmax(scores))] * before

    def _best(
        self,
        x: Float[Tensor, "s k f"],
        y: Float[Tensor, "s k c"],
        smoothness: tuple[float, ...],
        nuggets: tuple[float, ...],
        freedoms: tuple[float, ...],
    ) -> Float[Tensor, "6 c"]:
        """Evidence and parameters of the best choice for every column; a covariance serves all columns."""
        D = _distances(x, x)
        eye = torch.eye(D.shape[-1], dtype=D.dtype, device=D.device)
        apart = torch.where(eye > 0, torch.inf, D).amin(-1)
        unit = float(apart[apart > 0].median()) if bool((apart > 0).any()) else 1.0
        best = torch.full((6, y.shape[-1]), -torch.inf, dtype=y.dtype, device=y.device)
        for ν, scale, nugget in itertools.product(smoothness, _LENGTHSCALES, nuggets):
            length = scale * unit
            L = safe_cholesky(_matern(D / length, ν) + nugget * eye)
            Q, logdet = _misfit(L, y)
            for freedom in freedoms:
                variance, evidence = _evidence(Q, logdet, D.shape[-1] - 1, freedom)
                fixed = (torch.full_like(evidence, value) for value in (ν, length, nugget, freedom))
                row = torch.stack([evidence, variance, *fixed])
                best = torch.where(evidence > best[0], row, best)
        return best


def _krige(
    D: Float[Tensor, "b k k"],
    d: Float[Tensor, "b k"],
    y: Float[Tensor, "b k"],
    noise: Float[Tensor, "b k"],
    parameters: Float[Tensor, " 5"],
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    σ2, ν, length, nugget, freedom = parameters.tolist()
    tiny = torch.finfo(D.dtype).tiny
    r = _matern(d / length, ν)
    L = safe_cholesky(_matern(D / length, ν) + (nugget + noise / max(σ2, tiny)).diag_embed())
    a, o, q = torch.linalg.solve_triangular(L, torch.stack([y, torch.ones_like(y), r], -1), upper=False).unbind(-1)
    # Ordinary kriging: μ = 1ᵀR⁻¹y / 1ᵀR⁻¹1, and its own uncertainty in the variance
    oo = o.square().sum(-1)
    μ = (a * o).sum(-1) / oo
    left = a - μ.unsqueeze(-1) * o
    # σ² of the neighbourhood: (ν₀ σ² + misfit) / (ν₀ + k − 1)
    local = (freedom * σ2 + left.square().sum(-1)) / (freedom + y.shape[-1] - 1.0)
    share = 1.0 + nugget - q.square().sum(-1) + (1.0 - (o * q).sum(-1)).square() / oo
    # What is its own of an output is open in any case, whatever rounding says.
    return μ + (left * q).sum(-1), (local * share.clamp(min=nugget)).clamp(min=1e-12)


def _misfit(L: Float[Tensor, "s k k"], y: Float[Tensor, "s k c"]) -> tuple[Tensor, Tensor]:
    """(y − μ)ᵀR⁻¹(y − μ) of every subset and column, (s, c), and half the log determinants that go with it, (s, 1)."""
    o = torch.linalg.solve_triangular(L, torch.ones_like(y[..., :1]), upper=False)
    a = torch.linalg.solve_triangular(L, y, upper=False)
    oo = o.square().sum(1)
    Q = a.square().sum(1) - (a * o).sum(1).square() / oo
    return Q.clamp(min=1e-12), L.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True) + 0.5 * oo.log()


def _evidence(Q: Float[Tensor, "s c"], logdet: Float[Tensor, "s 1"], n: int, freedom: float) -> tuple[Tensor, Tensor]:
    """The variance that suits all subsets best, and the log evidence, where each has its own inverse gamma draw."""
    ν0 = freedom
    σ2 = Q.mean(0) / n
    for _ in range(_VARIANCE_STEPS):
        # ∂/∂σ² = 0 at 1/σ² = mean of (ν₀ + n) / (ν₀ σ² + Q)
        σ2 = 1.0 / ((ν0 + n) / (ν0 * σ2 + Q)).mean(0)
    constant = math.lgamma(0.5 * (ν0 + n)) - math.lgamma(0.5 * ν0) - 0.5 * n * math.log(2.0 * math.pi)
    each = 0.5 * ν0 * (0.5 * ν0 * σ2).log() - 0.5 * (ν0 + n) * (0.5 * (ν0 * σ2 + Q)).log() - logdet + constant
    return σ2, each.mean(0)


def _matern(r: Tensor, ν: float) -> Tensor:
    if ν == 0.5:
        return torch.exp(-r)
    t = math.sqrt(2.0 * ν) * r
    return (1.0 + t) * torch.exp(-t) if ν == 1.5 else (1.0 + t + t.square() / 3.0) * torch.exp(-t)


def _distances(a: Float[Tensor, "b k f"], b: Float[Tensor, "b j f"]) -> Float[Tensor, "b k j"]:
    # Differences of close points keep their digits this way.
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _neighbours(
    places: Float[Tensor, "p f"], targets: Float[Tensor, "k f"], count: int, is_self: bool
) -> Int[Tensor, "k n"]:
    """The nearest places of every target, itself left out if targets are the places."""
    count = min(count, len(places) - is_self)
    if count < 1:
        return torch.empty(len(targets), 0, dtype=torch.int64, device=targets.device)
    search = NearestNeighbors(n_neighbors=count).fit(places.cpu().numpy())
    # Without a query, scikit-learn leaves every place out of its own neighbours.
    found = search.kneighbors(None if is_self else targets.cpu().numpy(), return_distance=False)
    return torch.as_tensor(found, device=targets.device)
