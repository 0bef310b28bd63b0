"""Effects that rows of a table have on all outputs."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["RowEffects"]


class RowEffects(nn.Module):
    """g_np = b_pᵀ r_n with q(r_n) = N(m_n, C_n) at the inputs of a table, and r ~ N(0, I) at any other.

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
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None

    def forward(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Means and variances of the effects on cells (x, outputs)."""
        row, b = self._rows(x), self.loadings[outputs]
        is_known, row = row >= 0, row.clamp(min=0)
        mean = (b * self.mean[row]).sum(-1)
        variance = torch.einsum("bi,bij,bj->b", b, self.covariance[row], b)
        prior = b.square().sum(-1)
        return torch.where(is_known, mean, 0.0), torch.where(is_known, variance, prior) + self.unknown[outputs]

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

    def _rows(self, x: Float[Tensor, "b d"]) -> Int[Tensor, " b"]:
        """Numbers of the rows that have these inputs, to the last digit; -1 if there is none."""
        if self._sorted is None:
            keys = _keys(self.inputs)
            order = np.argsort(keys)
            self._sorted = keys[order], order
        (keys, order), wanted = self._sorted, _keys(x)
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        found = np.where(keys[place] == wanted, order[place], -1)
        return torch.as_tensor(found, device=x.device)


def _keys(x: Tensor) -> np.ndarray:
    """Rows of numbers as single items that can be sorted; a negative zero is a zero."""
    values = np.ascontiguousarray(x.detach().cpu().double().numpy() + 0.0)
    keys: np.ndarray = values.view(f"V{values.itemsize * values.shape[1]}").ravel()
    return keys
