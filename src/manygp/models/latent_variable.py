"""What all models with latent vectors of the outputs have in common."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.likelihoods import Likelihood
from manygp.variational import CoordinatePrior, Latents

__all__ = ["LatentVariableModel"]


class LatentVariableModel(nn.Module):
    """Numbers that belong to an output: latent vectors, a level where y cannot be centred, and those of the likelihood.

    Parameters
    ----------
    latents
        q(h) and p(h), with a row for every component of every output: row p Q + q is component q of output p.
    likelihood
        p(y | f).
    units
        What inputs (and latent vectors, where the model wants that) are divided by.
    num_components
        Number Q of latent vectors that an output has.
    has_levels
        Whether every output has a level c_p ~ N(c⁰_p, 1) of its own, learned as a point.
    sparse
        Whether gradients of levels and of the likelihood's parameters hold only the outputs that a batch touched.
    """

    latents: Latents
    likelihood: Likelihood
    units: Tensor
    coordinates: CoordinatePrior | None
    linear_share: float
    prior_level: Tensor | None
    level_variance: Tensor | None

    def __init__(
        self,
        latents: Latents,
        likelihood: Likelihood,
        units: Float[Tensor, " u"],
        num_components: int = 1,
        has_levels: bool = False,
        sparse: bool = False,
    ):
        super().__init__()
        self.latents, self.likelihood, self.num_components = latents, likelihood, num_components
        self.register_buffer("units", units.double())
        self.sparse = likelihood.sparse_rows = sparse
        start = torch.zeros(self.num_outputs, 1, dtype=torch.float64) if has_levels else None
        self.register_buffer("prior_level", start)
        self.level = None if start is None else nn.Parameter(start.clone())
        self.coordinates, self.linear_share = None, 0.0
        # Of outputs whose levels have never been learned.
        self.register_buffer("level_variance", None)

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return self.latents.num_outputs // self.num_components

    def rows(self, outputs: Int[Tensor, " p"]) -> Int[Tensor, " pq"]:
        """Rows of the latents that belong to some outputs, all components of one after another."""
        Q = self.num_components
        return (outputs.unsqueeze(-1) * Q + torch.arange(Q, device=outputs.device)).flatten()

    def levels(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"] | None:
        """Levels c_p of some outputs, or None if there are none."""
        return None if self.level is None else nn.functional.embedding(outputs, self.level, sparse=self.sparse)[:, 0]

    @torch.no_grad()
    def set_levels(self, level: Float[Tensor, " p"]) -> None:
        """Set the levels and the means of their prior."""
        assert self.level is not None
        assert self.prior_level is not None
        self.level.copy_(level.unsqueeze(-1))
        self.prior_level.copy_(level.unsqueeze(-1))

    def own_kl(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """KL of the latent vectors of every output, and −log of the priors of what else is its own."""
        kl = self.latents.kl(self.rows(outputs)).view(-1, self.num_components).sum(-1)
        # Deviations of single outputs from what all share have priors, as latents have.
        kl = kl + self.likelihood.negative_log_prior(outputs)
        level = self.levels(outputs)
        if level is not None and self.prior_level is not None:
            # −log N(c_p | c⁰_p, 1) without its constant
            kl = kl + 0.5 * (level - self.prior_level[outputs, 0]).square()
        return kl

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with rows for each output, of which a step touches only a few."""
        yield from self.latents.parameters()
        yield from self.likelihood.row_parameters()
        if self.level is not None:
            yield self.level
