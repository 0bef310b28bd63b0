"""A GP over coordinates of the outputs: what neighbours say about the numbers that belong to an output."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.data.coordinates import CoordinateMap
from manygp.kernels import matern
from manygp.linalg import safe_cholesky

# Neighbours that a conditional looks at, and cells of the arrays that are worked on at once.
_NEIGHBOURS, _CHUNK_NUMBERS = 48, 4_000_000
# Subsets of as many neighbours by which kernels and weights of features are found: at most, and in how many an output
# should be where all are few.
_SUBSETS, _WEIGHT_SUBSETS, _OVERLAP = 96, 24, 4
# What is tried: smoothness; lengthscales in distances of nearest neighbours; nuggets and degrees of freedom of the
# local variance. More groups of features than this share their lengthscale.
_SMOOTHNESS = (0.5, 1.5, 2.5)
_LENGTHSCALES = tuple(2.0**k for k in range(9))
_NUGGETS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 3.0)
_FREEDOMS = (3.0, 10.0, 30.0, 100.0, 1e4)
_COARSE, _FINE, _MAX_GROUPS = (0.25, 0.5, 1.0, 2.0, 4.0), (0.5**0.5, 1.0, 2.0**0.5), 5
# Kernels that are kept, steps by which their shares are found, and the least share that is worth a covariance.
_KERNELS, _SHARE_STEPS, _LEAST_SHARE = 16, 30, 0.01
# A number of which less is known than this share of its spread tells nothing about the parameters; and errors so many
# times the usual ones are usual still.
_KNOWN, _STILL_USUAL = 0.5, 2.0
_VARIANCE_STEPS = 30
# Tails at a distance: neighbours that are passed over, and looked at, and outputs that are asked.
_SKIPPED, _TAIL_NEIGHBOURS, _TAIL_OUTPUTS = (4, 16, 48), 24, 500
# Least misfit of a neighbourhood, as a share of the average: where all values are the same, nothing else would count.
_LEAST_MISFIT = 1e-4


class CoordinatePrior(nn.Module):
    """Independent GPs over the coordinates of outputs, one for each column of numbers that outputs have.

    Column c of output p is μ + g_c(s_p) + ε, with g_c a Matern GP and ε an independent part. Smoothness, lengthscale,
    share of ε and variance differ between regions: a neighbourhood has one of a few kernels, each with the share of
    neighbourhoods that it suits. A conditional looks at the nearest neighbours alone, estimates their mean by
    generalised least squares (ordinary kriging) and their variance by an inverse gamma prior, and averages over kernels
    by what the neighbours say about them. Cost is linear in the number of outputs, O(k³) for each with k neighbours and
    each kernel; all columns share it where they are known equally well everywhere, and all outputs are one batch.

    Parameters
    ----------
    coordinates
        The map from coordinates to features, in which distances mean something.
    num_outputs, num_columns
        Number of outputs, and of columns that each has.
    """

    features: Tensor
    weight: Tensor
    kernels: Tensor
    parameters_of: Tensor
    usual_noise: Tensor
    freedom: Tensor
    tails: Tensor

    def __init__(self, coordinates: CoordinateMap, num_outputs: int, num_columns: int):
        super().__init__()
        self.map, self.groups = coordinates, coordinates.groups
        width = sum(map(len, self.groups))
        self.register_buffer("features", torch.zeros(num_outputs, width, dtype=torch.float64))
        self.register_buffer("weight", torch.ones(width, dtype=torch.float64))
        # Columns: smoothness, lengthscale, nugget relative to the variance.
        self.register_buffer("kernels", torch.tensor([[1.5, 1.0, 0.1]], dtype=torch.float64).repeat(_KERNELS, 1))
        # Of every kernel and column: its share of neighbourhoods, variance, degrees of freedom of the variance.
        start = torch.tensor([1.0 / _KERNELS, 1.0, 10.0], dtype=torch.float64)
        self.register_buffer("parameters_of", start.view(3, 1, 1).repeat(1, _KERNELS, num_columns))
        # Errors that the nuggets have in them already.
        self.register_buffer("usual_noise", torch.zeros(num_columns, dtype=torch.float64))
        # Outputs are Student t about what the others say, with these degrees of freedom, and scales relative to the
        # variance that depend on how far the nearest of these is: rows of distances and scales.
        self.register_buffer("freedom", torch.tensor(_FREEDOMS[-1], dtype=torch.float64))
        self.register_buffer("tails", torch.ones(2, 1 + len(_SKIPPED), dtype=torch.float64))

    # -- conditionals --------------------------------------------------------------------------------------------

    def conditional(
        self,
        values: Float[Tensor, "p c"],
        noise: Float[Tensor, "p c"],
        features: Float[Tensor, "k f"] | None = None,
        neighbours: int = _NEIGHBOURS,
        skipped: int = 0,
    ) -> tuple[Float[Tensor, "k c"], Float[Tensor, "k c"]]:
        """Mean and variance of the columns of new outputs with some features; of every output from the others if None.

        Parameters
        ----------
        values, noise
            What is known of the outputs here: numbers and the variances of their errors.
        features
            Of the outputs asked for.
        neighbours, skipped
            Number of neighbours to look at, and of those nearer by that are passed over.
        """
        places = self.features * self.weight
        targets = places if features is None else features * self.weight
        near = _neighbours(places, targets, neighbours, features is None, skipped)
        shape = len(targets), values.shape[1]
        if near.shape[1] == 0:
            share, σ2, _ = self.parameters_of
            return values.new_zeros(shape), (share * σ2 * (1.0 + self.kernels[:, 2:])).sum(0).repeat(shape[0], 1)
        mean, variance = values.new_empty(shape), values.new_empty(shape)
        extra = _beyond(noise, self.usual_noise)
        is_mixed = (extra > 0).any(-1)[near].any(-1)
        size = max(1, _CHUNK_NUMBERS // near.shape[1] ** 2)
        # One covariance serves all columns but where their errors differ.
        for case, each in ((~is_mixed, [slice(None)]), (is_mixed, [slice(c, c + 1) for c in range(shape[1])])):
            for rows in torch.nonzero(case)[:, 0].split(size):
                at, x = targets[rows].unsqueeze(1), places[near[rows]]
                D, d, own = _distances(x, x), _distances(x, at)[..., 0], extra[near[rows]]
                for columns in each:
                    found = self._average(D, d, values[near[rows], columns], own[..., columns][..., 0], columns)
                    mean[rows, columns], variance[rows, columns] = found
        return mean, variance

    def _average(
        self,
        D: Float[Tensor, "b k k"],
        d: Float[Tensor, "b k"],
        y: Float[Tensor, "b k c"],
        noise: Float[Tensor, "b k"],
        columns: slice,
    ) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b c"]]:
        """Conditionals of columns whose values have the same errors, averaged over kernels."""
        parameters = self.parameters_of[:, :, columns]
        chosen = torch.nonzero((parameters[0] >= _LEAST_SHARE).any(-1))[:, 0].tolist()
        found = []
        for i in chosen:
            share, σ2, freedom = parameters[:, i]
            own = noise / σ2.clamp(min=torch.finfo(D.dtype).tiny)[0]
            mean, open_, Q, logdet = _krige(D, d, y, own, *self.kernels[i].tolist())
            # σ² of the neighbourhood: (ν₀ σ² + misfit) / (ν₀ + k − 1)
            local = (freedom * σ2 + Q) / (freedom + y.shape[1] - 1.0)
            evidence = share.log() + _log_evidence(Q, logdet, σ2, freedom, y.shape[1] - 1)
            found.append(torch.stack([evidence, mean, (local * open_).clamp(min=1e-12)]))
        evidence, mean, variance = torch.stack(found, 1)
        # Σ w v + Σ w (m − Σ w m)²
        w = evidence.softmax(0)
        center = (w * mean).sum(0)
        return center, (w * (variance + (mean - center).square())).sum(0)

    # -- parameters ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def learn(
        self,
        values: Float[Tensor, "p c"],
        noise: Float[Tensor, "p c"],
        seed: int,
        freedoms: tuple[float, ...] = _FREEDOMS,
        num_kernels: int = _KERNELS,
    ) -> None:
        """Kernels and their shares by the evidence of subsets of neighbours, and weights of features.

        Degrees of freedom of the local variance are chosen among those given; a very large one is the same variance
        everywhere. With one kernel, it is that of all neighbourhoods.
        """
        spread = values.var(0, unbiased=False)
        known = torch.nonzero((noise < _KNOWN * spread).all(-1))[:, 0]
        known = torch.arange(len(values), device=values.device) if len(known) < _NEIGHBOURS else known
        if len(known) < 3:
            return
        self.usual_noise.copy_(noise[known].median(0).values)
        rng, apart = np.random.default_rng(seed), max(1.0, len(known) / _NEIGHBOURS)
        count = min(_SUBSETS, math.ceil(_OVERLAP * apart))
        centers = known[torch.as_tensor(rng.permutation(len(known))[:count], device=known.device)]
        places = self.features[known]
        subsets = known[_neighbours(places, self.features[centers], _NEIGHBOURS, False)]
        y = values[subsets]
        if 1 < len(self.groups) <= _MAX_GROUPS:
            self._learn_weights(subsets[:_WEIGHT_SUBSETS], y[:_WEIGHT_SUBSETS])
        tried = _Tried.of(self.features[subsets] * self.weight, y, _SMOOTHNESS, _NUGGETS, freedoms)
        kept, share = tried.kept(min(num_kernels, _KERNELS), min(apart, count))
        self.parameters_of[0] = 0.0
        self.parameters_of[0, : len(kept)] = share
        self.kernels[: len(kept)], self.parameters_of[1:, : len(kept)] = tried.kernels[kept], tried.parameters[:, kept]

    @torch.no_grad()
    def learn_tails(
        self,
        values: Float[Tensor, "p c"],
        noise: Float[Tensor, "p c"],
        mean: Float[Tensor, "p c"],
        variance: Float[Tensor, "p c"],
        num_columns: int,
    ) -> None:
        """How the first columns of outputs lie about their conditionals given the others, and given others farther off.

        Next to its neighbours an output is far more like them than variances say, or far less; where the nearest are
        far away, variances are about right.
        """
        known = torch.nonzero((noise < _KNOWN * values.var(0, unbiased=False))[:, :num_columns].all(-1))[:, 0]
        if len(known) < 3:
            return
        places, asked = self.features * self.weight, known[:: 1 + len(known) // _TAIL_OUTPUTS]

        def tail(outputs: Tensor, mean: Tensor, variance: Tensor, freedoms: tuple[float, ...]) -> tuple[Tensor, Tensor]:
            total = variance + _beyond(noise, self.usual_noise)[outputs]
            Q = ((values[outputs] - mean).square() / total)[:, :num_columns].sum(-1, keepdim=True)
            return tuple(_at_best(Q, torch.zeros_like(Q), num_columns, freedoms)[1][:, 0])

        self.tails[1, 0], found = tail(known, mean[known], variance[known], _FREEDOMS)
        self.freedom.copy_(found)
        # Every output is its own nearest place.
        for level, skipped in enumerate((0, *_SKIPPED)):
            if len(values) <= 2 * (skipped + 1):
                self.tails[:, level] = self.tails[:, level - 1]
                continue
            nearest = _neighbours(places, places[asked], 1, False, skipped + 1)[:, 0]
            self.tails[0, level] = (places[asked] - places[nearest]).norm(dim=-1).median().clamp(min=1e-12)
            if level:
                away = self.conditional(values, noise, self.features[asked], _TAIL_NEIGHBOURS, skipped + 1)
                self.tails[1, level], _ = tail(asked, *away, (float(found),))

    def tail_scales(self, features: Float[Tensor, "k f"]) -> Float[Tensor, " k"]:
        """Scales of the Student t of outputs with some features, relative to their variances."""
        places, targets = self.features * self.weight, features * self.weight
        nearest = _neighbours(places, targets, 1, False)[:, 0]
        distance = (targets - places[nearest]).norm(dim=-1).clamp(min=1e-12)
        at, scale = self.tails.log().cpu().numpy()
        return features.new_tensor(np.exp(np.interp(distance.log().cpu().numpy(), at, scale)))

    def _learn_weights(self, subsets: Int[Tensor, "s k"], y: Float[Tensor, "s k c"]) -> None:
        """One weight of each group of features after the other, by the evidence of all columns together."""
        for factors, group in itertools.product((_COARSE, _COARSE, _FINE), self.groups[1:]):
            before, scores = self.weight[group].clone(), []
            for factor in factors:
                self.weight[group] = factor * before
                x = self.features[subsets] * self.weight
                tried = _Tried.of(x, y, _SMOOTHNESS[1:2], _NUGGETS[2::2], _FREEDOMS[1::2])
                scores.append(float(tried.evidence.mean(1).amax(0).sum()))
            self.weight[group] = factors[int(np.argmax(scores))] * before


@dataclass(frozen=True)
class _Tried:
    """Kernels, (g, 3); their variances and degrees of freedom for every column; their evidence in every subset."""

    kernels: Float[Tensor, "g 3"]
    parameters: Float[Tensor, "2 g c"]
    evidence: Float[Tensor, "g s c"]

    @classmethod
    def of(
        cls,
        x: Float[Tensor, "s k f"],
        y: Float[Tensor, "s k c"],
        smoothness: tuple[float, ...],
        nuggets: tuple[float, ...],
        freedoms: tuple[float, ...],
    ) -> "_Tried":
        """All combinations, each with the degrees of freedom that suit all subsets best."""
        D, tried = _distances(x, x), itertools.product(smoothness, _LENGTHSCALES, nuggets)
        eye = torch.eye(D.shape[-1], dtype=D.dtype, device=D.device)
        apart = torch.where(eye > 0, torch.inf, D).amin(-1)
        unit = float(apart[apart > 0].median()) if bool((apart > 0).any()) else 1.0
        kernels = [(ν, scale * unit, nugget) for ν, scale, nugget in tried]
        each = [_misfit(safe_cholesky(_correlation(D / length, ν) + nugget * eye), y) for ν, length, nugget in kernels]
        Q, logdet = (torch.stack(parts) for parts in zip(*each, strict=True))
        evidence, parameters = _at_best(Q, logdet, D.shape[-1] - 1, freedoms)
        return cls(D.new_tensor(kernels), parameters, evidence)

    def kept(self, count: int, apart: float) -> tuple[Int[Tensor, " m"], Float[Tensor, "m c"]]:
        """The kernels that suit most neighbourhoods, of which so many lie apart, and their shares for every column."""
        if count == 1:
            best = self.evidence.mean(1).sum(-1).argmax()[None]
            return best, self.evidence.new_ones(1, self.evidence.shape[-1])
        kept = _shares(self.evidence, apart).sum(-1).topk(min(count, len(self.kernels))).indices
        return kept, _shares(self.evidence[kept], apart)


def _beyond(noise: Float[Tensor, "p c"], usual: Float[Tensor, " c"]) -> Float[Tensor, "p c"]:
    """What errors are beyond the usual: how far neighbours differ has those that all have in it."""
    return torch.where(noise > _STILL_USUAL * usual, noise - usual, 0.0)


def _shares(evidence: Float[Tensor, "g s c"], apart: float) -> Float[Tensor, "g c"]:
    """Shares of neighbourhoods to which kernels belong, by expectation maximisation.

    Subsets count as many as lie apart, and one more that belongs to all kernels alike.
    """
    equal = 1.0 / len(evidence)
    share = torch.full_like(evidence[:, 0], equal)
    for _ in range(_SHARE_STEPS):
        share = (apart * (evidence + share.log().unsqueeze(1)).softmax(0).mean(1) + equal) / (apart + 1.0)
    return share


def _krige(
    D: Float[Tensor, "b k k"],
    d: Float[Tensor, "b k"],
    y: Float[Tensor, "b k c"],
    noise: Float[Tensor, "b k"],
    ν: float,
    length: float,
    nugget: float,
) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b 1"], Float[Tensor, "b c"], Float[Tensor, "b 1"]]:
    """Means, and variances and misfits per unit of variance, with the log determinants of `_misfit`."""
    r = _correlation(d / length, ν).unsqueeze(-1)
    L = safe_cholesky(_correlation(D / length, ν) + (nugget + noise).diag_embed())
    white = torch.linalg.solve_triangular(L, torch.cat([y, torch.ones_like(r), r], -1), upper=False)
    a, o, q = white[..., :-2], white[..., -2:-1], white[..., -1:]
    # Ordinary kriging: μ = 1ᵀR⁻¹y / 1ᵀR⁻¹1, and its own uncertainty in the variance
    oo = o.square().sum(1)
    μ = (a * o).sum(1) / oo
    left = a - μ.unsqueeze(1) * o
    share = 1.0 + nugget - q.square().sum(1) + (1.0 - (o * q).sum(1)).square() / oo
    # What is its own of an output is open in any case, whatever rounding says.
    return μ + (left * q).sum(1), share.clamp(min=nugget), left.square().sum(1), _half_logdet(L, oo)


def _misfit(L: Float[Tensor, "s k k"], y: Float[Tensor, "s k c"]) -> tuple[Tensor, Tensor]:
    """(y − μ)ᵀR⁻¹(y − μ) of every subset and column, (s, c), and half the log determinants that go with it, (s, 1)."""
    o = torch.linalg.solve_triangular(L, torch.ones_like(y[..., :1]), upper=False)
    a = torch.linalg.solve_triangular(L, y, upper=False)
    oo = o.square().sum(1)
    Q = a.square().sum(1) - (a * o).sum(1).square() / oo
    return Q.clamp(min=1e-12), _half_logdet(L, oo)


def _half_logdet(L: Float[Tensor, "s k k"], oo: Float[Tensor, "s 1"]) -> Float[Tensor, "s 1"]:
    return L.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True) + 0.5 * oo.log()


def _at_best(
    Q: Float[Tensor, "*g s c"], logdet: Float[Tensor, "*g s 1"], n: int, freedoms: tuple[float, ...]
) -> tuple[Float[Tensor, "*g s c"], Float[Tensor, "2 *g c"]]:
    """Log evidence of subsets, with the variance and the degrees of freedom of every column that suit all best."""
    average = Q.mean(-2, keepdim=True)
    Q = torch.maximum(Q, _LEAST_MISFIT * average)
    evidence = torch.full_like(Q, -torch.inf)
    parameters = torch.stack([average, average])
    for ν0 in freedoms:
        σ2 = average / n
        for _ in range(_VARIANCE_STEPS):
            # ∂/∂σ² = 0 at 1/σ² = mean of (ν₀ + n) / (ν₀ σ² + Q)
            σ2 = 1.0 / ((ν0 + n) / (ν0 * σ2 + Q)).mean(-2, keepdim=True)
        freedom = torch.full_like(σ2, ν0)
        each = _log_evidence(Q, logdet, σ2, freedom, n)
        is_better = each.mean(-2, keepdim=True) > evidence.mean(-2, keepdim=True)
        evidence = torch.where(is_better, each, evidence)
        parameters = torch.where(is_better, torch.stack([σ2, freedom]), parameters)
    return evidence, parameters.squeeze(-2)


def _log_evidence(
    Q: Float[Tensor, "*g s c"],
    logdet: Float[Tensor, "*g s 1"],
    σ2: Float[Tensor, "*g #s c"] | Float[Tensor, " c"],
    freedom: Float[Tensor, "*g #s c"] | Float[Tensor, " c"],
    n: int,
) -> Float[Tensor, "*g s c"]:
    """Log density of subsets, each with an inverse gamma draw of its own for the variance."""
    ν0 = freedom
    constant = torch.lgamma(0.5 * (ν0 + n)) - torch.lgamma(0.5 * ν0) - 0.5 * n * math.log(2.0 * math.pi)
    return 0.5 * ν0 * (0.5 * ν0 * σ2).log() - 0.5 * (ν0 + n) * (0.5 * (ν0 * σ2 + Q)).log() - logdet + constant


def _correlation(distance: Tensor, ν: float) -> Tensor:
    return matern(distance.square(), ν)[0]


def _distances(a: Float[Tensor, "b k f"], b: Float[Tensor, "b j f"]) -> Float[Tensor, "b k j"]:
    # Differences of close points keep their digits this way.
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _neighbours(
    places: Float[Tensor, "p f"], targets: Float[Tensor, "k f"], count: int, is_self: bool, skipped: int = 0
) -> Int[Tensor, "k n"]:
    """The nearest places of every target but some, itself left out if targets are the places."""
    # Few models ever ask, and the import takes longer than their first search.
    from sklearn.neighbors import NearestNeighbors

    count = min(count + skipped, len(places) - is_self)
    if count <= skipped:
        return torch.empty(len(targets), 0, dtype=torch.int64, device=targets.device)
    search = NearestNeighbors(n_neighbors=count).fit(places.cpu().numpy())
    # Without a query, scikit-learn leaves every place out of its own neighbours.
    found = search.kneighbors(None if is_self else targets.cpu().numpy(), return_distance=False)
    return torch.as_tensor(found[:, skipped:], device=targets.device)
