"""GS-LVMOGP and LV-MOGP: a mixture over draws of the latent vectors, each a sparse GP of all cells."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions import SHARED, At, Block, Known, Left, Process, Spectrum, View, cell_keys, input_keys
from manygp.kernels import cross_covariance, is_fused, kernel_diagonal
from manygp.linalg import safe_cholesky
from manygp.models.joint.transformed import KNOWN, LEFT, NUM_FEATURES, blocks_of_terms
from manygp.variational.kronecker import DenseFeatures, FactoredFeatures

if TYPE_CHECKING:
    from manygp.models.gslvmogp import SeparableLatentModel

__all__ = ["SeparableJoint"]


class SeparableKernel:
    """Σ_q k_X^q k_H^q on points that are an input and all latent vectors of an output side by side."""

    def __init__(self, model: "SeparableLatentModel"):
        self.model, self.d, self.h = model, model.Z_X.shape[1], model.Z_H.shape[2]

    def _parts(self, points: Float[Tensor, "*s b e"]) -> tuple[Tensor, Tensor]:
        """Inputs in units (*s, b, d), and latent vectors (*s, b, q, h)."""
        return points[..., : self.d] / self.model.units, points[..., self.d :].unflatten(-1, (-1, self.h))

    def __call__(self, a: Float[Tensor, "*s a e"], b: Float[Tensor, "*s b e"]) -> Float[Tensor, "*s a b"]:
        (x, h), (other_x, other_h) = self._parts(a), self._parts(b)
        parts = [
            cross_covariance(on_inputs, x, other_x) * cross_covariance(on_latents, h[..., q, :], other_h[..., q, :])
            for q, (on_inputs, on_latents) in enumerate(self.model._kernels())
        ]
        return torch.stack(parts).sum(0)

    def diagonal(self, a: Float[Tensor, "*s a e"]) -> Float[Tensor, "*s a"]:
        """k(aᵢ, aᵢ)."""
        x, h = self._parts(a)
        parts = [
            kernel_diagonal(on_inputs, x) * kernel_diagonal(on_latents, h[..., q, :])
            for q, (on_inputs, on_latents) in enumerate(self.model._kernels())
        ]
        return torch.stack(parts).sum(0)

    def explained(self, points: Float[Tensor, "s b e"]) -> Float[Tensor, "s b m"]:
        """Rows A, by the features of the model."""
        flat = points.flatten(0, -2)
        features = self.model.features(flat[:, : self.d], flat[:, self.d :].unflatten(-1, (-1, self.h)))
        if isinstance(features, FactoredFeatures):
            A = (features.left.unsqueeze(-1) * features.right.unsqueeze(-2)).flatten(1)
        else:
            assert isinstance(features, DenseFeatures)
            A = features.values.flatten(1)
        return A.unflatten(0, points.shape[:-1])

    def spectrum(self, count: int, seed: int) -> Spectrum | None:
        """Random features: a frequency of a product is one of each factor."""
        size, Q = self.d + self.h * self.model.num_components, self.model.num_components
        frequencies, amplitudes = [], []
        for q, (on_inputs, on_latents) in enumerate(self.model._kernels()):
            if not (is_fused(on_inputs) and is_fused(on_latents)):
                return None
            left, right = Spectrum.of(on_inputs, count // Q, seed), Spectrum.of(on_latents, count // Q, seed + q + 1)
            assert left is not None
            assert right is not None
            both = left.frequencies.new_zeros(len(left.frequencies), size)
            both[:, : self.d] = left.frequencies / self.model.units
            both[:, self.d + q * self.h : self.d + (q + 1) * self.h] = right.frequencies
            frequencies.append(both)
            # σ_X² σ_H² shared out among the frequencies
            amplitudes.append(left.amplitude * right.amplitude * len(both) ** 0.5)
        return Spectrum(torch.cat(frequencies), torch.cat(amplitudes))


class SeparableJoint:
    """f of any cells together, see `SeparablePredictor` for single ones."""

    num_points, output_places = 1, None

    def __init__(self, model: "SeparableLatentModel", num_samples: int, seed: int):
        self.model, self.num_components, self.seed = model, num_samples, seed
        kernel, q = SeparableKernel(model), model.posterior.moments()
        j, k = model.Z_H.shape[1], len(model.Z_X)
        # All pairs of inducing latent vectors and inputs, in the order of vec M; inputs there are in units already.
        Z_H, Z_X = model.Z_H.detach().movedim(1, 0).flatten(1), model.Z_X.detach() * model.units
        self.process = Process(
            kernel,
            torch.cat([Z_X.repeat(j, 1), Z_H.repeat_interleave(k, 0)], -1),
            torch.kron(*model.pair_whitening()) if model.num_components == 1 else model.dense_whitening(),
            q.mean.flatten(),
            torch.kron(safe_cholesky(q.left), safe_cholesky(q.right)),
            spectrum=kernel.spectrum(NUM_FEATURES, seed),
            explain=kernel.explained,
        )
        self.width = j * k + NUM_FEATURES

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        model, s = self.model, self.num_components
        distinct, column = outputs.unique(return_inverse=True)
        h = model.latents.sample(model.rows(distinct), s, self.seed).unflatten(1, (len(distinct), -1))[:, column]
        at = At(self.process, torch.cat([x.expand(s, *x.shape), h.flatten(2)], -1))
        own = cell_keys(x, outputs) if self.process.spectrum is None else None
        blocks: list[Block] = [Known(stream=KNOWN, at=at), Left(stream=LEFT, at=at, key=own)]
        points = model.points(x, outputs, input_keys(x))
        return View(at.mean() + model.terms.mean(points), blocks + blocks_of_terms(model.terms, points, True))

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data between some cells and others, latent vectors at their means."""
        latents, rows = self.model.latents, self.model.rows
        a, b = (
            torch.cat([inputs, latents.means(rows(which)).detach().view(len(which), -1)], -1)
            for inputs, which in ((x, outputs), (other_x, other_outputs))
        )
        return {SHARED: self.process.prior(a, b)}
