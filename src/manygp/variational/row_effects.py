"""Effects that rows of a table have on all outputs."""

import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.variational.known_inputs import KnownInputs

__all__ = ["RowEffects"]


class RowEffects(nn.Module):
    """g_np = b_pᵀ r_n with q(r_n) = N(m_n, C_n) at the inputs of a table, and r ~ N(0, I) at any other.

    Where nothing is known of an effect, at other inputs and for outputs that came later, it is noise of the
    observations.

    Parameters
    ----------
    num_rows, num_outputs, num_features, num_effects
        Sizes n, p, d and k.

    Attributes
    ----------
    inputs
        Inputs as the model sees them, none of them twice, shape (n, d).
    mean, covariance
        Of q(r), shapes (n, k) and (n, k, k).
    loadings
        b, shape (p, k).
    unknown
        Variances of effects on outputs whose loadings nobody knows, shape (p,).
    has_noise
        Whether effects of which nothing is known are part of the variance.
    """

    inputs: Tensor
    mean: Tensor
    covariance: Tensor
    loadings: Tensor
    unknown: Tensor

    def __init__(self, num_rows: int, num_outputs: int, num_features: int, num_effects: int):
        super().__init__()
        n, p, k = num_rows, num_outputs, num_effects
        shapes = {"inputs": (n, num_features), "mean": (n, k), "covariance": (n, k, k), "loadings": (p, k)}
        for name, shape in {**shapes, "unknown": (p,)}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.has_noise = True
        self._known: KnownInputs | None = None

    def forward(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Means and variances of the effects on cells (x, outputs)."""
        if self._known is None:
            self._known = KnownInputs(self.inputs)
        row, b, unknown = self._known.find(x), self.loadings[outputs], self.unknown[outputs]
        prior = b.square().sum(-1)
        is_known, row = (row >= 0) & (prior > 0.0), row.clamp(min=0)
        mean = (b * self.mean[row]).sum(-1)
        variance = torch.einsum("bi,bij,bj->b", b, self.covariance[row], b) + unknown
        noise = prior + unknown if self.has_noise else torch.zeros_like(prior)
        return torch.where(is_known, mean, 0.0), torch.where(is_known, variance, noise)

    def without_noise(self) -> "RowEffects":
        """The same effects as part of functions alone: those of which nothing is known are left out."""
        new = copy.copy(self)
        new.has_noise = False
        return new

    def with_new_outputs(self, count: int, alone: bool = False) -> "RowEffects":
        """The same effects for new outputs behind the old ones, or instead of them; their loadings are not known."""
        old = (0 if alone else 1) * len(self.loadings)
        n, k = self.mean.shape
        new = RowEffects(n, old + count, self.inputs.shape[1], k).to(self.mean.device)
        for name in ("inputs", "mean", "covariance"):
            getattr(new, name).copy_(getattr(self, name))
        new.loadings[:old], new.unknown[:old] = self.loadings[:old], self.unknown[:old]
        new.unknown[old:] = (self.loadings.square().sum(-1) + self.unknown).mean()
        return new
