"""Latent vectors of the outputs: prior p(h_p) and variational posterior q(h_p)."""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import chi2
from torch import Tensor, nn

from manygp.errors import SettingError
from manygp.keyed import joint_keys, normals
from manygp.linalg import gaussian_kl, safe_cholesky

LATENT_POSTERIORS = ("full", "diagonal", "point")
_SAMPLE_BLOCK = 1024
# Standard deviations of a latent vector that are as long as a step at a learning rate of 1.
_OPEN = 10.0


class Latents(nn.Module):
    """q(h_p) = N(m_p, L_p L_pᵀ) for every output p, with prior N(m⁰_p, s I).

    Only the rows of the outputs asked for are touched, and their gradients are sparse when `sparse` is set, so that
    cost depends on the batch and not on the number of outputs.

    Parameters
    ----------
    num_outputs, dim
        Number of outputs and of latent dimensions.
    posterior
        "full" covariance, "diagonal" covariance, or "point" (no variance; the KL term becomes −log p(h)).
    prior_mean
        Shape (p, h); zero if None.
    prior_variance
        The variance s of the prior, the same in all directions.
    sparse
        Whether gradients hold only the rows that a batch touched.
    relative
        Whether L_p = diag(exp r) (I + N), N strictly lower triangular, so that a step of the optimiser is a relative
        change; otherwise the entries of L_p are free.
    shared_draws
        Whether all cells of an output in a batch share one draw of its latent vector, as published.

    Attributes
    ----------
    unit
        What a step of an optimiser on means is a share of, in every direction, shape (h,).
    """

    prior_mean: Tensor | None
    local_variance: Tensor | None
    prior_center: Tensor
    prior_scale: Tensor
    unit: Tensor
    _rows: Tensor
    _cols: Tensor
    _diagonal: Tensor

    def __init__(
        self,
        num_outputs: int,
        dim: int,
        posterior: str = "full",
        prior_mean: Float[Tensor, "p h"] | None = None,
        prior_variance: float = 1.0,
        sparse: bool = False,
        relative: bool = False,
        shared_draws: bool = False,
    ):
        super().__init__()
        if posterior not in LATENT_POSTERIORS:
            raise SettingError(f"latent_posterior={posterior!r} is unknown: use one of {', '.join(LATENT_POSTERIORS)}.")
        self.dim, self.posterior, self.prior_variance = dim, posterior, prior_variance
        self.sparse, self.relative, self.shared_draws = sparse, relative, shared_draws
        # Degrees of freedom of draws for prediction: below infinity h_p is Student t, with scale L_p L_pᵀ.
        self.freedom = math.inf
        self.register_buffer("prior_mean", None if prior_mean is None else prior_mean.double())
        # Variances of a prior that differs between outputs, (p, h).
        self.register_buffer("local_variance", None)
        # Where the prior means came from: in the user's units they are prior_mean · prior_scale + prior_center.
        self.register_buffer("prior_center", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("prior_scale", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("unit", torch.ones(dim, dtype=torch.float64))
        start = torch.zeros(num_outputs, dim, dtype=torch.float64) if prior_mean is None else prior_mean.double()
        self.mean = nn.Parameter(start.clone())
        # The Cholesky factor row by row; its diagonal alone for a diagonal posterior.
        indices = torch.tril_indices(dim, dim) if posterior == "full" else torch.arange(dim).expand(2, dim)
        self.register_buffer("_rows", indices[0].clone(), persistent=False)
        self.register_buffer("_cols", indices[1].clone(), persistent=False)
        # Where L_ii is among them.
        self.register_buffer("_diagonal", (indices[0] == indices[1]).nonzero().squeeze(-1), persistent=False)
        width = {"full": dim * (dim + 1) // 2, "diagonal": dim, "point": 0}[posterior]
        self.scale = nn.Parameter(torch.zeros(num_outputs, width, dtype=torch.float64))
        self.set_variance(prior_variance)

    @property
    def num_outputs(self) -> int:
        return self.mean.shape[0]

    def set_variance(self, variance: float, outputs: Int[Tensor, " p"] | slice = slice(None)) -> None:
        """Set q(h_p) of the outputs to covariance `variance` · I."""
        eye = torch.eye(self.dim, dtype=torch.float64, device=self.mean.device)
        self.set_factor((variance**0.5 * eye).expand(self.mean[outputs].shape[0], -1, -1), outputs)

    @torch.no_grad()
    def set_factor(self, L: Float[Tensor, "p h h"], outputs: Int[Tensor, " p"] | slice = slice(None)) -> None:
        """Set the Cholesky factors of the outputs; a diagonal posterior takes their diagonals."""
        if self.posterior == "point":
            return
        rows = L[:, self._rows, self._cols]
        if self.relative:
            own = L[:, self._rows, self._rows]
            rows = torch.where(self._rows == self._cols, own.log(), rows / own)
        self.scale[outputs] = rows

    @torch.no_grad()
    def take_small_steps(self) -> None:
        """Let steps on means be small beside what is open about them, in every direction, for the usual output."""
        sd = self.factor(torch.arange(self.num_outputs, device=self.mean.device)).square().sum(-1).sqrt()
        self.unit.copy_((_OPEN * sd.median(0).values).clamp(max=1.0))

    @torch.no_grad()
    def set_prior_mean(
        self, mean: Float[Tensor, "p h"], center: Float[Tensor, " h"], scale: Float[Tensor, " h"]
    ) -> None:
        """Set the prior means, the means of q(h_p) with them, and the units that they came from."""
        assert self.prior_mean is not None
        self.prior_mean.copy_(mean)
        self.mean.copy_(mean)
        self.prior_center.copy_(center)
        self.prior_scale.copy_(scale)

    @torch.no_grad()
    def set_local_prior(self, mean: Float[Tensor, "p h"], variance: Float[Tensor, "p h"]) -> None:
        """Give every output a prior N(mean, diag variance) of its own."""
        self.prior_mean, self.local_variance = mean.clone(), variance.clone()

    @torch.no_grad()
    def change_prior(self, mean: Float[Tensor, "p h"], variance: Float[Tensor, "p h"]) -> None:
        """Give every output another prior of its own, and let q(h_p) go along, see `under_prior`."""
        if self.posterior != "point":
            found, covariance = self.under_prior(mean, variance)
            self.mean.copy_(found)
            self.set_factor(safe_cholesky(covariance))
        self.set_local_prior(mean, variance)

    @torch.no_grad()
    def under_prior(
        self, mean: Float[Tensor, "p h"], variance: Float[Tensor, "p h"]
    ) -> tuple[Float[Tensor, "p h"], Float[Tensor, "p h h"]]:
        """Means and covariances that q(h_p) would have under another prior: q · p_new / p_old.

        That is the new optimum where f is linear in h and noise Gaussian, and a good guess elsewhere.
        """
        before, center = self.prior_variances(), torch.zeros_like(mean) if self.prior_mean is None else self.prior_mean
        precision = torch.cholesky_inverse(self.factor(torch.arange(len(mean), device=mean.device)))
        pull = (precision @ self.mean.unsqueeze(-1)).squeeze(-1) - center / before
        d, V = self._told()
        new = (V * d.unsqueeze(-2)) @ V.mT + (1.0 / variance).diag_embed()
        pull = (V @ (V.mT @ pull.unsqueeze(-1))).squeeze(-1) + mean / variance
        covariance = torch.cholesky_inverse(safe_cholesky(new))
        return (covariance @ pull.unsqueeze(-1)).squeeze(-1), covariance

    def _told(self) -> tuple[Float[Tensor, "p h"], Float[Tensor, "p h h"]]:
        """What data say, Λ − diag(1/s) = V diag(d) Vᵀ, without negative directions.

        There are none but by rounding and unfinished steps.
        """
        precision = torch.cholesky_inverse(self.factor(torch.arange(self.num_outputs, device=self.mean.device)))
        d, V = torch.linalg.eigh(precision - self.prior_variances().reciprocal().diag_embed())
        return d, V * (d > 0).unsqueeze(-2)

    def prior_variances(self) -> Float[Tensor, "p h"]:
        """Variances of the prior of every output."""
        if self.local_variance is not None:
            return self.local_variance
        return torch.full_like(self.mean, self.prior_variance)

    @torch.no_grad()
    def set_to_prior(self, outputs: Int[Tensor, " p"]) -> None:
        """Set q(h_p) to the prior, the optimum for outputs without observations."""
        self.mean[outputs] = torch.zeros_like(self.mean[:1]) if self.prior_mean is None else self.prior_mean[outputs]
        self.set_factor(self.prior_variances()[outputs].sqrt().diag_embed(), outputs)

    def factor(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, "p h h"]:
        """Cholesky factors L_p of the covariances."""
        p = outputs.shape[0]
        L = self.mean.new_zeros(p, self.dim, self.dim)
        if self.posterior == "point":
            return L
        rows = nn.functional.embedding(outputs, self.scale, sparse=self.sparse)
        if self.relative:
            on_diagonal = self._rows == self._cols
            # L_ii = exp r_i and L_ij = exp(r_i) N_ij
            own = rows.index_select(1, self._diagonal).exp().index_select(1, self._rows)
            rows = own * torch.where(on_diagonal, 1.0, rows)
        L[:, self._rows, self._cols] = rows
        return L

    def means(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, "p h"]:
        """Means m_p."""
        return nn.functional.embedding(outputs, self.mean, sparse=self.sparse)

    def rsample(
        self,
        outputs: Int[Tensor, " p"],
        column: Int[Tensor, " b"],
        generator: torch.Generator,
        shared: bool = False,
        key: int | None = None,
    ) -> Float[Tensor, "b h"]:
        """A reparametrised draw m_p + L_p ε for every cell, where cell i belongs to outputs[column[i]].

        Cells of one output have draws of their own, unless they are `shared` or `shared_draws` is set: the bound only
        needs the marginals, and the noise of its gradient averages out over the cells. They come in pairs ±ε, whose
        first-order noise cancels. With a `key`, draws of an output follow from it and the output's number alone, and
        not from the generator, whichever others are in the batch.
        """
        # index_select, because the backward of plain indexing is many times slower.
        m = self.means(outputs).index_select(0, column)
        if self.posterior == "point":
            return m
        shared = shared or self.shared_draws
        if key is not None:
            noise = _keyed_noise(key, outputs, column, self.dim, shared)
        elif shared:
            draws = torch.randn(len(outputs), self.dim, dtype=m.dtype, device=m.device, generator=generator)
            noise = draws.index_select(0, column)
        else:
            draws = torch.randn((len(m) + 1) // 2, self.dim, dtype=m.dtype, device=m.device, generator=generator)
            pairs = torch.stack([draws, -draws], 1).flatten(0, 1)[: len(m)]
            noise = torch.empty_like(pairs).index_copy_(0, column.argsort(stable=True), pairs)
        L = self.factor(outputs).flatten(1).index_select(0, column).view(-1, self.dim, self.dim)
        return m + (L * noise.unsqueeze(-2)).sum(-1)

    def kl(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """KL[q(h_p) ‖ p(h_p)] of every output; −log p(m_p) for a point posterior."""
        delta = self.means(outputs)
        if self.prior_mean is not None:
            delta = delta - self.prior_mean[outputs]
        L, variance = self.factor(outputs), self.prior_variance
        if self.local_variance is not None:
            # In standard deviations of the prior, which is N(0, I) there.
            sd = self.local_variance[outputs].sqrt()
            delta, L, variance = delta / sd, L / sd.unsqueeze(-1), 1.0
        if self.posterior == "point":
            # The density of h_p itself, not of h_p in standard deviations.
            rest = 0.0 if self.local_variance is None else 0.5 * self.local_variance[outputs].log().sum(-1)
            scale = torch.as_tensor(variance, dtype=delta.dtype, device=delta.device).sqrt()
            return rest - torch.distributions.Normal(0.0, scale).log_prob(delta).sum(-1)
        # tr Σ = |L|²,  log|Σ| = Σ log L_ii²
        logdet = L.diagonal(dim1=-2, dim2=-1).square().log().sum(-1)
        return gaussian_kl(delta, L.square().sum((-2, -1)), logdet, variance)

    @torch.no_grad()
    def sample(
        self, outputs: Int[Tensor, " p"], num_samples: int, seed: int, width: float = 1.0
    ) -> Float[Tensor, "s p h"]:
        """Draws for prediction: each output's depend on the seed and its own number alone.

        So an output's prediction does not change with which others are asked for, or in what chunks. Draws come in
        pairs m ± L ε, whose average is exact for all that is linear in h; `width` multiplies L, see `stretches` too.
        """
        m, L, half = self.means(outputs), self.factor(outputs), num_samples // 2
        noise = m.new_empty(num_samples, outputs.shape[0], self.dim)
        blocks = outputs // _SAMPLE_BLOCK
        for block in blocks.unique().tolist():
            generator, chosen = torch.Generator().manual_seed(_mix(seed, block)), blocks == block
            # The numbers of a generator are the same however many are asked for at a time.
            for part in noise[: num_samples - half].split(_SAMPLE_BLOCK):
                draws = torch.randn(len(part), _SAMPLE_BLOCK, self.dim, dtype=m.dtype, generator=generator)
                part[:, chosen] = draws.to(m.device)[:, outputs[chosen] % _SAMPLE_BLOCK]
        noise[num_samples - half :] = -noise[:half]
        noise *= self.stretches(num_samples).view(-1, 1, 1)
        return m + torch.einsum("pij,spj->spi", width * L, noise)

    def stretches(self, num_samples: int) -> Float[Tensor, " s"]:
        """What L is multiplied by in every draw: 1, or evenly spread quantiles of √(ν / χ²_ν) for a Student t."""
        half = num_samples // 2
        count = num_samples - half
        if math.isinf(self.freedom):
            return self.mean.new_ones(num_samples)
        χ2 = chi2.ppf(1.0 - (np.arange(count) + 0.5) / count, self.freedom)
        each = self.mean.new_tensor(np.sqrt(self.freedom / χ2))
        return torch.cat([each, each[:half]])


def _keyed_noise(
    key: int, outputs: Int[Tensor, " p"], column: Int[Tensor, " b"], dim: int, shared: bool
) -> Float[Tensor, "b h"]:
    """ε of every cell: pairs ±ε of the cells of an output one after another, or one that all of them share."""
    first = torch.zeros(1, dtype=torch.int64, device=outputs.device)
    if shared:
        return normals(key, 0, outputs, first, dim)[:, 0].index_select(0, column)
    sorted_column, order = column.sort(stable=True)
    # How many cells of the same output come before a cell.
    place = torch.arange(len(column), device=column.device) - torch.searchsorted(sorted_column, sorted_column)
    pairs = normals(key, 0, joint_keys(outputs.index_select(0, sorted_column), place // 2), first, dim)[:, 0]
    signed = torch.where((place % 2 == 0).unsqueeze(-1), pairs, -pairs)
    return torch.empty_like(signed).index_copy_(0, order, signed)


def _mix(seed: int, block: int) -> int:
    """A 63-bit seed that differs between blocks even for neighbouring seeds."""
    return (seed * 0x9E3779B97F4A7C15 + block * 0xD1B54A32D192ED03 + 1) % (1 << 63)
