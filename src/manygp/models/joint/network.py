"""SGPRN: outputs as products of latent processes and weights that are processes too."""

from typing import TYPE_CHECKING

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions import SHARED, At, Process, Spectrum, View, cell_keys, input_keys, normals
from manygp.functions.process import normalised
from manygp.linalg import triangular_inverse
from manygp.models.joint.transformed import EmbeddingKernel
from manygp.variational import KnownInputs
from manygp.variational.layout import pad_groups, unique_inputs

if TYPE_CHECKING:
    from manygp.models.sgprn import RegressionNetwork

__all__ = ["NetworkJoint"]

# Random features of latent processes, and of the weights, of which every output has its own.
_NUM_FEATURES, _NUM_WEIGHT_FEATURES = 512, 64
LATENTS, LATENTS_LEFT, LATENTS_WHITE, WEIGHTS, WEIGHTS_LEFT = range(1, 6)


class NetworkView(View):
    """f_p(x) = w_p(x)ᵀ h(x) with independent Gaussian w and h.

    With C_h and C_w the covariances of h and w at two cells, cov f = w̄ᵀ C_h w̄' + [h̄ᵀ C_w h̄' + tr C_h C_w] for cells of
    one output, and the first term alone for others.
    """

    def __init__(self, joint: "NetworkJoint", x: Tensor, outputs: Tensor):
        self.joint, self.outputs = joint, outputs
        model = joint.model
        inputs, self.row = unique_inputs(x)
        self.inputs, self.place = inputs, joint.known.find(inputs)
        self.h_at, self.w_at = At(joint.h, inputs), At(joint.w, inputs)
        # (n, q) and (b, q)
        self.h = self.h_at.A @ model.latents.mean.detach()
        distinct, column = outputs.unique(return_inverse=True)
        padding = pad_groups(column, len(distinct))
        mean = model.weights.mean.detach().index_select(0, distinct)
        self.w = padding.take(padding.pad(self.w_at.A[self.row]) @ mean)
        self.spread = model.weights.spread(*model._output_modes).detach()[outputs]
        level = 0.0 if model.bias is None else model.bias.detach()[outputs, 0]
        super().__init__(((self.w * self.h[self.row]).sum(-1) + level).unsqueeze(0), [])

    @property
    def is_linear(self) -> bool:
        return False

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        joint, i, j = self.joint, self.row[a], self.row[b]
        Ω, Γ = joint.model.latents.covariance(1).detach(), joint.model.weights.covariance(1).detach()
        known_h, left_h = self._parts(self.h_at, joint.h_root, i, j, joint.model.latent_noise.detach())
        known_w, left_w = self._parts(self.w_at, joint.w_root, i, j, 0.0)
        # C_h = left_h I + known_h Ω, C_w = left_w I + γ known_w Γ₂
        γ = self.spread[a].sqrt().unsqueeze(-1) * self.spread[b].sqrt()
        first = left_h * (self.w[a] @ self.w[b].T) + known_h * (self.w[a] @ Ω @ self.w[b].T)
        h = self.h[i], self.h[j]
        own = left_w * (h[0] @ h[1].T) + γ * known_w * (h[0] @ Γ @ h[1].T)
        q = len(Ω)
        own = own + q * left_h * left_w + left_h * γ * known_w * Γ.trace() + known_h * left_w * Ω.trace()
        own = own + known_h * γ * known_w * (Ω * Γ).sum()
        return (first + torch.where(self.outputs[a].unsqueeze(-1) == self.outputs[b], own, 0.0)).unsqueeze(0)

    def _parts(self, at: At, root: Tensor, i: Tensor, j: Tensor, white: Tensor | float) -> tuple[Tensor, Tensor]:
        """Covariances of what is known and of what is left between inputs, the same for all processes."""
        R = at.A @ root
        left = at.left_covariance(at) + white * torch.eye(len(R), dtype=R.dtype, device=R.device)
        return (R @ R.T)[i][:, j], left[i][:, j]

    def variance_of_sums(self, W: Tensor) -> Float[Tensor, "s g"]:
        every, dense = torch.arange(self.mean.shape[1], device=W.device), W.to_dense()
        return ((dense @ self.covariance(every, every)) * dense).sum(-1)

    def draw(self, draws: Int[Tensor, " n"], seed: int) -> Float[Tensor, "n b"]:
        joint, model = self.joint, self.joint.model
        q, n, one = self.h.shape[1], len(draws), torch.arange(self.h.shape[1], device=self.h.device)
        Ω, Γ = model.latents.factor(1).detach(), model.weights.factor(1).detach()
        # h = A (M + R E Ωᵀ) + r, with r of every process by itself: (inputs, q, n)
        E = normals(seed, LATENTS, one, draws, len(joint.h_root)).to(self.h)
        known = torch.einsum("am,qnm->aqn", self.h_at.A @ joint.h_root, E)
        h = self.h.unsqueeze(-1) + torch.einsum("pq,aqn->apn", Ω, known)
        is_new, noise = self.place < 0, model.latent_noise.detach()
        left = self.h_at.left(torch.where(is_new, 0.0, noise))
        h = h + self._left(self.h_at, left, LATENTS_LEFT, one, draws, seed)
        white = normals(seed, LATENTS_WHITE, input_keys(self.inputs), draws, q).to(h).mT
        h = h + torch.where(is_new, noise.sqrt(), 0.0).view(-1, 1, 1) * white
        # w_p in the same way, outputs by outputs
        values = h.new_empty(n, len(self.outputs))
        root, left = self.w_at.A @ joint.w_root, self.w_at.left()
        for output in self.outputs.unique():
            cells = torch.nonzero(self.outputs == output).squeeze(-1)
            at = self.row[cells]
            keys = output * q + one
            E = normals(seed, WEIGHTS, keys, draws, len(joint.w_root)).to(h)
            known = torch.einsum("cm,qnm->cqn", self.spread[cells[0]].sqrt() * root[at], E)
            w = self.w[cells].unsqueeze(-1) + torch.einsum("pq,cqn->cpn", Γ, known)
            w = w + self._left(self.w_at, left, WEIGHTS_LEFT, keys, draws, seed)[at]
            values[:, cells] = (w * h[at]).sum(1).T
        level = self.mean[0] - (self.w * self.h[self.row]).sum(-1)
        return values + level

    def _left(
        self, at: At, left: Tensor, stream: int, keys: Tensor, draws: Tensor, seed: int
    ) -> Float[Tensor, "n q k"]:
        """Draws of what inputs of the table leave of some processes, with these variances."""
        if at.process.spectrum is None:
            cells = [cell_keys(self.inputs, key.expand(len(self.inputs))) for key in keys]
            ε = torch.stack([normals(seed, stream, cell, draws, 1)[..., 0] for cell in cells], 1)
            return left.sqrt().view(-1, 1, 1) * ε.to(left)
        rows = normalised(at.left_rows(), left)
        return torch.einsum("ak,qnk->aqn", rows, normals(seed, stream, keys, draws, rows.shape[-1]).to(rows))


class NetworkJoint:
    """f of any cells together, see `NetworkPredictor` for single ones."""

    num_components, num_points, output_places = 1, 1, None

    def __init__(self, model: "RegressionNetwork", seed: int):
        self.model = model
        Cf, Cw = model.whitening()
        self.h_root, self.w_root = model.latents.factor(0).detach(), model.weights.factor(0).detach()
        self.h = self._process(model.latent_kernel, Cf, _NUM_FEATURES, seed, model.latent_noise.detach())
        self.w = self._process(model.weight_kernel, Cw, _NUM_WEIGHT_FEATURES, seed + 1, None)
        self.known = KnownInputs(model.inputs)
        self.width = 8 * len(model.latents.factor(1)) + 64

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        return NetworkView(self, x, outputs)

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data of the latent processes between cells, weights at their means."""
        w, v = NetworkView(self, x, outputs).w, NetworkView(self, other_x, other_outputs).w
        same = (input_keys(x).unsqueeze(-1) == input_keys(other_x)).to(w)
        return {SHARED: (w @ v.T) * (self.h.prior(x, other_x) + self.model.latent_noise.detach() * same)}

    def _process(self, kernel: Kernel, C: Tensor, num_features: int, seed: int, noise: Tensor | None) -> Process:
        """A prior process with the inputs of the table, where its white noise, if it has some, is that of the table."""
        X, prior, Linv = self.model.inputs, EmbeddingKernel(kernel), triangular_inverse(C)

        def explained(points: Tensor) -> Tensor:
            K = prior(points, X)
            if noise is not None:
                same = self.known.find(points).unsqueeze(-1) == torch.arange(len(X), device=X.device)
                K = K + noise * same
            return K @ Linv.T

        return Process(
            prior,
            X,
            Linv,
            X.new_zeros(len(X)),
            noise=None if noise is None else noise.expand(len(X)),
            spectrum=Spectrum.of(kernel, num_features, seed),
            explain=explained,
        )
