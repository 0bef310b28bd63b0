"""Embeddings Φ: maps of the pair (x, h) into the space where one scalar GP lives.

An embedding is any `nn.Module` that takes the concatenated pair as rows. The residual network with bounded spectral
norms is the paper's; its bound keeps distances in the embedding within known factors of distances of the pairs.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.errors import SettingError

__all__ = ["EMBEDDINGS", "Residual", "SpectralLinear", "embedding_dim", "is_near_identity", "make_embedding"]

EMBEDDINGS = ("residual", "identity", "mlp")


def make_embedding(
    embedding: str | nn.Module,
    dim: int,
    num_blocks: int = 3,
    spectral_bound: float | None = 0.1,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """An embedding of `dim` dimensional pairs, from its name or as a copy of the module given.

    Weights are drawn from the generator, or from one that is always the same.
    """
    if isinstance(embedding, nn.Module):
        return copy.deepcopy(embedding).double()
    if embedding == "residual":
        return Residual(dim, num_blocks, spectral_bound, generator)
    if embedding == "identity":
        return nn.Identity()
    if embedding == "mlp":
        width, generator = max(32, 2 * dim), generator or torch.Generator()
        layers: list[nn.Module] = [_linear(dim, width, generator)]
        for _ in range(num_blocks - 1):
            layers += [nn.ReLU(), _linear(width, width, generator)]
        return nn.Sequential(*layers, nn.ReLU(), _linear(width, dim, generator))
    raise SettingError(f"embedding={embedding!r} is unknown: use one of {', '.join(EMBEDDINGS)}, or a torch.nn.Module.")


def embedding_dim(embedding: nn.Module, dim: int) -> int:
    """Number of dimensions that the embedding returns for pairs of `dim` dimensions."""
    training = embedding.training
    try:
        with torch.no_grad():
            out = embedding.eval()(torch.zeros(2, dim, dtype=torch.float64))
    except (RuntimeError, TypeError) as error:
        raise SettingError(
            f"The embedding {type(embedding).__name__} cannot take rows of {dim} values (inputs and latents "
            f"together): {error}"
        ) from error
    finally:
        embedding.train(training)
    if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[0] != 2:
        raise SettingError(
            f"The embedding {type(embedding).__name__} must map rows to rows, a (b, {dim}) tensor to (b, e), "
            f"but (2, {dim}) became {tuple(getattr(out, 'shape', ())) or type(out).__name__}."
        )
    return out.shape[1]


def is_near_identity(embedding: nn.Module) -> bool:
    """Whether the last dimensions of an embedding are, but for bends, the latent vectors."""
    return isinstance(embedding, Residual | nn.Identity)


def _linear(width: int, height: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer at torch's usual start, whatever the default dtype and the state of the global generator."""
    layer = nn.utils.skip_init(nn.Linear, width, height, dtype=torch.float64)
    weight, bias = torch.empty(height, width, dtype=torch.float32), torch.empty(height, dtype=torch.float32)
    nn.init.kaiming_uniform_(weight, a=5**0.5, generator=generator)
    nn.init.uniform_(bias, -(width**-0.5), width**-0.5, generator=generator)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


def _unit(vector: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """x / |x|, by few operations, as there are many of them."""
    return vector / vector.norm().clamp_min(1e-12)


class SpectralLinear(nn.Module):
    """Linear layer whose spectral norm is held at or below a bound by power iteration (algorithm 1).

    The singular vectors persist from call to call; a call in training mode makes one iteration. The weight is
    rescaled only where its norm exceeds the bound.
    """

    u: Tensor
    v: Tensor

    def __init__(self, dim: int, bound: float | None, generator: torch.Generator | None = None):
        super().__init__()
        generator = generator or torch.Generator()
        linear = _linear(dim, dim, generator)
        self.weight, self.bias, self.bound = linear.weight, linear.bias, bound
        for name in ("u", "v"):
            draw = torch.randn(dim, dtype=torch.float64, generator=generator)
            self.register_buffer(name, nn.functional.normalize(draw, dim=0))

    @torch.no_grad()
    def iterate(self, num_iterations: int = 1) -> None:
        """Improve the leading singular vectors: u ← A v / |A v|, v ← Aᵀ u / |Aᵀ u|."""
        u, v, weight, transposed = self.u, self.v, self.weight, self.weight.T
        for _ in range(num_iterations):
            u = _unit(weight @ v)
            v = _unit(transposed @ u)
        self.u.copy_(u)
        self.v.copy_(v)

    def bounded_weight(self) -> Float[Tensor, "d d"]:
        """The weight in use: A, or c A / σ where its norm estimate σ exceeds the bound c."""
        if self.bound is None:
            return self.weight
        # σ = uᵀ A v; clones keep the graph intact when the next iteration overwrites u and v
        norm = self.u.clone() @ self.weight @ self.v.clone()
        return self.weight * (self.bound / norm.clamp(min=self.bound))

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        if self.training and self.bound is not None:
            self.iterate()
        return nn.functional.linear(x, self.bounded_weight().to(x.dtype), self.bias.to(x.dtype))


class Residual(nn.Module):
    """Residual network g = g_L ∘ … ∘ g_1 with g_l(x) = x + ReLU(W_l x + b_l) and ‖W_l‖₂ ≤ c.

    Parameters
    ----------
    dim
        Number of dimensions, the same before and after.
    num_blocks
        Number of residual blocks L.
    spectral_bound
        Upper bound c of every spectral norm; None leaves the weights free.
    generator
        Where the weights are drawn from; None is a generator that is always the same.
    """

    def __init__(
        self,
        dim: int,
        num_blocks: int = 3,
        spectral_bound: float | None = 0.1,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.spectral_bound, generator = spectral_bound, generator or torch.Generator()
        self.layers = nn.ModuleList(SpectralLinear(dim, spectral_bound, generator) for _ in range(num_blocks))
        for layer in self._linear_layers():
            layer.iterate(20)

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x

    @torch.no_grad()
    def shrink(self, share: float) -> None:
        """Multiply all weights in use, and the biases, by a share: the smaller, the closer to the identity."""
        for layer in self._linear_layers():
            layer.weight.copy_(share * layer.bounded_weight())
            layer.bias.mul_(share)

    @torch.no_grad()
    def lipschitz_interval(self) -> tuple[float, float]:
        """Certified bounds on |g(x) − g(x')| / |x − x'|: ((1−c)ᴸ, (1+c)ᴸ).

        Here c is the largest exact singular value of the weights in use, not the estimate of the power iteration, so
        that the interval holds for every pair of points. Where c ≥ 1 the lower bound is 0.
        """
        c = max(float(torch.linalg.matrix_norm(layer.bounded_weight(), 2)) for layer in self._linear_layers())
        return max(0.0, 1.0 - c) ** len(self.layers), (1.0 + c) ** len(self.layers)

    def _linear_layers(self) -> list[SpectralLinear]:
        return [layer for layer in self.layers if isinstance(layer, SpectralLinear)]
