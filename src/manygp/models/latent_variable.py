"""What all models with latent vectors of the outputs have in common."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.likelihoods import Likelihood
from manygp.terms import Term, Terms
from manygp.variational import CoordinatePrior, Latents


class LatentVariableModel(nn.Module):
    """Numbers that belong to an output: latent vectors, those of the likelihood, and those of terms beside the GP.

    An output has Q latent vectors, one for each component: row p Q + q of q(h) is component q of output p. Inputs, and
    latent vectors where the model wants that, are divided by `units`.
    """

    latents: Latents
    likelihood: Likelihood
    units: Tensor
    coordinates: CoordinatePrior | None
    linear_share: float

    def __init__(
        self,
        latents: Latents,
        likelihood: Likelihood,
        units: Float[Tensor, " u"],
        num_components: int = 1,
        terms: Sequence[Term] = (),
        sparse: bool = False,
    ):
        super().__init__()
        self.latents, self.likelihood, self.num_components = latents, likelihood, num_components
        self.register_buffer("units", units.double())
        likelihood.sparse_rows = sparse
        self.terms = Terms(terms)
        self.coordinates, self.linear_share = None, 0.0

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return self.latents.num_outputs // self.num_components

    def rows(self, outputs: Int[Tensor, " p"]) -> Int[Tensor, " pq"]:
        """Rows of the latents that belong to some outputs, all components of one after another."""
        Q = self.num_components
        return (outputs.unsqueeze(-1) * Q + torch.arange(Q, device=outputs.device)).flatten()

    def own_kl(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """KL of the latent vectors of every output, and −log of the priors of what else is its own."""
        kl = self.latents.kl(self.rows(outputs)).view(-1, self.num_components).sum(-1)
        # Deviations of single outputs from what all share have priors, as latents have.
        return kl + self.likelihood.negative_log_prior(outputs) + self.terms.negative_log_prior(outputs)

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with rows for each output, of which a step touches only a few."""
        yield from self.latents.parameters()
        yield from self.likelihood.row_parameters()
        yield from self.terms.row_parameters()

    def row_units(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Parameters among these whose steps are shares of units, and the units."""
        yield self.latents.mean, self.latents.unit
