"""SGPRN: outputs as mixtures of latent processes whose weights are processes too, with Kronecker posteriors."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.functions import Joint
from manygp.kernels import cross_covariance, kernel_diagonal
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import conjugate_gradients, safe_cholesky
from manygp.models.joint.network import NetworkJoint
from manygp.models.model import Model
from manygp.variational import CellBatch, ElboTerms, TensorNormal, trusted_rate, trusted_sites
from manygp.variational.layout import distinct_inputs, pad_groups

# Relative jitter of covariances among inputs.
_JITTER = 1e-6
# Conjugate gradient iterations of a step on the latents, and on the weights, which are many; the next step goes on
# from there.
_ITERATIONS, _WEIGHT_ITERATIONS = 8, 4
# Up to so many outputs form one mode, whose covariance is then full; more are split into two modes, at most so far from
# square.
_ONE_MODE, _MAX_RATIO = 64, 4.0


def choose_output_shape(num_outputs: int) -> tuple[int, ...]:
    """Modes of the tensor of outputs: one for a few outputs, else two of about the same size.

    Their product is the number of outputs where it has such factors, and otherwise a little more: the places left over
    are outputs that nobody observes.
    """
    if num_outputs <= _ONE_MODE:
        return (num_outputs,)
    root = math.isqrt(num_outputs)
    rows = next(size for size in range(root, 0, -1) if num_outputs % size == 0)
    if num_outputs / rows <= _MAX_RATIO * rows:
        return rows, num_outputs // rows
    return root, -(-num_outputs // root)


@dataclass(frozen=True)
class _View:
    """A batch as the model sees it: places of its cells among its a inputs and p outputs, and whitening factors."""

    place: Int[Tensor, " b"]
    Cf: Float[Tensor, "a n"]
    Cw: Float[Tensor, "a n"]
    noise: Float[Tensor, "a q"] | None

    def grid(self, values: Float[Tensor, " b"], num_outputs: int) -> Float[Tensor, "a p"]:
        """Values of cells in their places, zeros elsewhere."""
        flat = values.new_zeros(len(self.Cf) * num_outputs).index_add(0, self.place, values)
        return flat.view(len(self.Cf), num_outputs)


@dataclass(frozen=True)
class _Moments:
    """E h_n and its variance factor Σ_nn; E W_n and its variance factor Γ₁_nn, at the inputs of a batch."""

    h: Float[Tensor, "a q"]
    s: Float[Tensor, " a"]
    W: Float[Tensor, "a p q"]
    c: Float[Tensor, " a"]


class RegressionNetwork(Model):
    """Gaussian process regression network with matrix- and tensor-normal posteriors.

    Generative model: f_l ~ GP(0, k_f) and w_pl ~ GP(0, k_w) for l = 1, …, L, all independent; h_n = f(x_n) + σ_f ε_n,
    y_np ~ p(y | b_p + w_p(x_n)ᵀ h_n).

    Approximation: q(F) = MN(M; Σ, Ω) over the n x L values of f + σ_f ε at the inputs, q(W) = TN(U; Γ₁, Γ₂, …) over the
    n x L x p₁ x p₂ … weights, outputs laid out as a tensor with at least P places in all. Both are kept whitened,
    F = C_f F̃ and W = C_w W̃ with Cholesky factors of the prior covariances of the inputs, so that Σ = C_f Σ̃ C_fᵀ.

    Bound: Σ_np E_q[log p(y_np | ·)] − KL[q(F) ‖ p(F)] − KL[q(W) ‖ p(W)] over observed cells. Gaussian noise needs mean
    and variance of w_pᵀ h_n alone, which are closed forms; other likelihoods take one draw of h_n for each input.

    Cost of a step on a inputs and p outputs: O(N³ + a N L p + a L² p) time, O(N² + a L p) memory beside the posterior,
    which has L N (P + 1) means.

    Reference: appendices I and J of the paper.
    """

    inputs: Tensor

    def __init__(
        self,
        inputs: Float[Tensor, "n d"],
        latent_kernel: Kernel,
        weight_kernel: Kernel,
        likelihood: Likelihood,
        num_outputs: int,
        num_latents: int,
        output_shape: Sequence[int],
        natural: bool = True,
        bias: Float[Tensor, "p 1"] | None = None,
    ):
        super().__init__()
        n = len(inputs)
        self.latent_kernel, self.weight_kernel, self.likelihood = latent_kernel, weight_kernel, likelihood
        self.register_buffer("inputs", inputs.double().clone())
        self.latents = TensorNormal((n, num_latents), torch.zeros(n, num_latents), natural)
        self.weights = TensorNormal((n, num_latents, *output_shape), torch.zeros(num_outputs, n, num_latents), natural)
        self.log_latent_noise = nn.Parameter(torch.tensor(math.log(0.01), dtype=torch.float64))
        self.bias = None if bias is None else nn.Parameter(bias.double().clone())
        self.natural = natural

    @property
    def num_parameters(self) -> int:
        """Parameters of q: L N + 2 N² + 2 L² + L N P + Σ_m p_m² (appendix I)."""
        return self.latents.num_parameters + self.weights.num_parameters

    @property
    def latent_noise(self) -> Float[Tensor, ""]:
        """σ_f²."""
        return self.log_latent_noise.exp()

    def whitening(self) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
        """C_f and C_w with C_f C_fᵀ = k_f(X, X) + σ_f² I and C_w C_wᵀ = k_w(X, X), up to jitter."""
        X = self.inputs
        noise = self.latent_noise * torch.eye(len(X), dtype=X.dtype, device=X.device)
        Kf, Kw = cross_covariance(self.latent_kernel, X, X) + noise, cross_covariance(self.weight_kernel, X, X)
        return safe_cholesky(Kf, _JITTER), safe_cholesky(Kw, _JITTER)

    @property
    def _output_modes(self) -> range:
        return range(2, len(self.weights.shape))

    # -- the bound -----------------------------------------------------------------------------------------------

    def _view(self, batch: CellBatch, generator: torch.Generator) -> _View:
        assert batch.row is not None
        rows, index = batch.row.unique(return_inverse=True)
        Cf, Cw = self.whitening()
        noise = None
        if not isinstance(self.likelihood, Gaussian):
            shape = (len(rows), self.latents.shape[1])
            noise = torch.randn(shape, dtype=Cf.dtype, device=Cf.device, generator=generator)
        return _View(index * len(batch.outputs) + batch.column, Cf[rows], Cw[rows], noise)

    def _moments(self, view: _View, outputs: Int[Tensor, " p"]) -> _Moments:
        h, s = view.Cf @ self.latents.mean, (view.Cf @ self.latents.factor(0)).square().sum(-1)
        if view.noise is not None:
            # h_n = E h_n + √Σ_nn chol(Ω) ε
            h, s = h + s.sqrt().unsqueeze(-1) * (view.noise @ self.latents.factor(1).T), torch.zeros_like(s)
        W = torch.einsum("an,pnq->apq", view.Cw, self.weights.mean.index_select(0, outputs))
        return _Moments(h, s, W, (view.Cw @ self.weights.factor(0)).square().sum(-1))

    def _marginals(self, batch: CellBatch, view: _View, q: _Moments) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Mean and variance of f at every cell.

        var = Σ_nn WᵀΩW + Γ₁_nn γ_p (hᵀΓ₂h + Σ_nn tr Γ₂Ω), γ_p the output's entry in the diagonal of Γ₃ ⊗ Γ₄ ⊗ …
        """
        Ω, Γ = self.latents.factor(1), self.weights.factor(1)
        γ = self.weights.spread(*self._output_modes)[batch.outputs]
        mean = torch.einsum("apq,aq->ap", q.W, q.h)
        own = q.c * ((q.h @ Γ).square().sum(-1) + q.s * (Γ.T @ Ω).square().sum())
        variance = q.s.unsqueeze(-1) * (q.W @ Ω).square().sum(-1) + own.unsqueeze(-1) * γ
        mean, variance = (grid.flatten().index_select(0, view.place) for grid in (mean, variance))
        if self.bias is None:
            return mean, variance
        bias = nn.functional.embedding(batch.outputs, self.bias, sparse=self.natural).squeeze(-1)
        return mean + bias.index_select(0, batch.column), variance

    def _terms(self, batch: CellBatch, view: _View) -> ElboTerms:
        mean, variance = self._marginals(batch, view, self._moments(view, batch.outputs))
        outputs = batch.outputs[batch.column]
        data = self.likelihood.expected_log_prob(mean, variance, batch.y.to(mean.dtype), outputs).sum()
        kl = self.latents.covariance_kl() + 0.5 * self.latents.mean.square().sum() + self.weights.covariance_kl()
        # KL[q(W) ‖ p(W)] has ½ |Ũ_p|² of every output, and the rest above.
        own = 0.5 * self.weights.mean.index_select(0, batch.outputs).square().sum((-2, -1))
        own = own + self.likelihood.negative_log_prior(batch.outputs)
        return ElboTerms(batch.cell_weight * data, kl, (batch.output_weight * own).sum())

    # -- natural steps -------------------------------------------------------------------------------------------

    def _natural_step(self, batch: CellBatch, view: _View, rate: float) -> None:
        """Steps on q(F) and then on q(W): covariances mode by mode, each given the others, then means."""
        q = self._moments(view, batch.outputs)
        self._step_latents(batch, view, q, *self._sites(batch, view, q), rate)
        q = self._moments(view, batch.outputs)
        self._step_weights(batch, view, q, *self._sites(batch, view, q), rate)

    def _sites(self, batch: CellBatch, view: _View, q: _Moments) -> tuple[Float[Tensor, "a p"], Float[Tensor, "a p"]]:
        """∂E/∂μ and the curvature β = −2 ∂E/∂v of every cell, zero where nothing is observed."""
        mean, variance = self._marginals(batch, view, q)
        y, outputs = batch.y.to(mean.dtype), batch.outputs[batch.column]
        slope, β, _ = trusted_sites(self.likelihood, mean, variance, y, outputs)
        return view.grid(slope, len(batch.outputs)), view.grid(β, len(batch.outputs))

    def _step_latents(
        self, batch: CellBatch, view: _View, q: _Moments, by_mean: Tensor, β: Tensor, rate: float
    ) -> None:
        F, C, w = self.latents, view.Cf, batch.cell_weight
        n, L = F.shape
        Γ = self.weights.covariance(1)
        t = β @ self.weights.spread(*self._output_modes)[batch.outputs]
        # B_n = Σ_p β E[w_p w_pᵀ] = Σ_p β W_np W_npᵀ + Γ₁_nn Σ_p β γ_p Γ₂
        B = (q.W * β.unsqueeze(-1)).mT @ q.W + (q.c * t).view(-1, 1, 1) * Γ
        Ω, eye = F.covariance(1), torch.eye(n, dtype=C.dtype, device=C.device)
        # Σ̃⁻¹ = (tr Ω I + w Cᵀ diag(tr Ω B_n) C) / L,  Ω⁻¹ = (tr Σ̃ I + w Σ_n Σ_nn B_n) / N
        F.blend(0, (F.trace(1) * eye + w * C.T @ ((B * Ω).sum((-2, -1)).unsqueeze(-1) * C)) / L, rate)
        s = (C @ F.factor(0)).square().sum(-1)
        F.blend(1, (F.trace(0) * torch.eye(L).to(B) + w * (s.view(-1, 1, 1) * B).sum(0)) / n, rate)
        # ∂/∂h_n = Σ_p ∂E/∂μ W_np − Γ₁_nn Σ_p β γ_p Γ₂ h_n
        by_h = torch.einsum("ap,apq->aq", by_mean, q.W) - (q.c * t).unsqueeze(-1) * (q.h @ Γ)
        Σ, Ω, Σinv, Ωinv = F.covariance(0), F.covariance(1), F.precision(0), F.precision(1)

        def curvature(step: Tensor) -> Tensor:
            joint = step + w * C.T @ (B @ (C @ step).unsqueeze(-1)).squeeze(-1)
            return (1.0 - rate) * Σinv @ step @ Ωinv + rate * joint

        step = conjugate_gradients(curvature, lambda x: Σ @ x @ Ω, w * C.T @ by_h - F.mean, _ITERATIONS)
        if not isinstance(self.likelihood, Gaussian):
            moves = torch.einsum("apq,aq->ap", q.W, C @ step).flatten()
            rate = float(trusted_rate(moves.index_select(0, view.place), rate))
        F.mean.add_(rate * step)

    def _step_weights(
        self, batch: CellBatch, view: _View, q: _Moments, by_mean: Tensor, β: Tensor, rate: float
    ) -> None:
        W, C = self.weights, view.Cw
        Ω = self.latents.covariance(1)
        s = (view.Cf @ self.latents.factor(0)).square().sum(-1)
        # E_n = E[h_n h_nᵀ]
        E = q.h.unsqueeze(-1) * q.h.unsqueeze(-2) + s.view(-1, 1, 1) * Ω
        self._step_weight_covariances(batch, C, E, β, rate)
        γ = W.spread(*self._output_modes)[batch.outputs].view(-1, 1, 1)
        Γ1, Γ2, Γ1inv, Γ2inv = W.covariance(0), W.covariance(1), W.precision(0), W.precision(1)
        # An output's cells count w / w_p times against its own term. If they are all here, it goes all the way.
        weight = (batch.cell_weight / batch.output_weight).view(-1, 1, 1)
        is_whole = (weight == 1.0) if isinstance(self.likelihood, Gaussian) else torch.zeros_like(weight)
        g = torch.where(is_whole.bool(), 1.0, rate)
        is_all_whole = bool(is_whole.all())
        gradient = by_mean.unsqueeze(-1) * q.h.unsqueeze(1) - β.unsqueeze(-1) * q.s.view(-1, 1, 1) * (q.W @ Ω)
        mean = W.mean.index_select(0, batch.outputs)
        right = weight * torch.einsum("an,apq->pnq", C, gradient) - mean

        def curvature(step: Tensor) -> Tensor:
            inner = β.unsqueeze(-1) * (torch.einsum("an,pnq->apq", C, step) @ E)
            joint = step + weight * torch.einsum("an,apq->pnq", C, inner)
            return joint if is_all_whole else (1.0 - g) * (Γ1inv @ step @ Γ2inv) / γ + g * joint

        step = conjugate_gradients(curvature, lambda x: γ * (Γ1 @ x @ Γ2), right, _WEIGHT_ITERATIONS, num_batch_dims=1)
        if not isinstance(self.likelihood, Gaussian):
            # Every output by itself, and nothing where it is not observed.
            moves = torch.einsum("an,pnq,aq->ap", C, step, q.h) * view.grid(torch.ones_like(batch.y), len(mean)).sign()
            g = trusted_rate(moves.T, rate).view(-1, 1, 1)
        W.mean.index_copy_(0, batch.outputs, mean + g * step)

    def _step_weight_covariances(self, batch: CellBatch, C: Tensor, E: Tensor, β: Tensor, rate: float) -> None:
        """Γ_m⁻¹ = (Π_{i≠m} tr Γ_i I + what cells say about mode m) k_m / k, one mode after another."""
        W, w, modes = self.weights, batch.cell_weight, self._output_modes
        size = math.prod(W.shape)

        def blend(mode: int, data: Tensor) -> None:
            others = W.trace(*(m for m in range(len(W.shape)) if m != mode))
            target = others * torch.eye(len(data), dtype=C.dtype, device=C.device) + w * data
            W.blend(mode, target * (W.shape[mode] / size), rate)

        t = β @ W.spread(*modes)[batch.outputs]
        e = (E * W.covariance(1)).sum((-2, -1))
        blend(0, C.T @ ((t * e).unsqueeze(-1) * C))
        c = (C @ W.factor(0)).square().sum(-1)
        blend(1, ((c * t).view(-1, 1, 1) * E).sum(0))
        e = (E * W.covariance(1)).sum((-2, -1))
        # What the cells of an output add up to, in the place of the output in the tensor.
        own = torch.zeros(math.prod(W.shape[2:]), dtype=C.dtype, device=C.device)
        own = own.index_copy(0, batch.outputs, (c * e) @ β).view(W.shape[2:])
        for mode in modes:
            rest = own
            for other in modes:
                if other != mode:
                    shape = [-1 if m == other else 1 for m in modes]
                    rest = rest * W.spread(other).view(shape)
            # Only variances of single cells matter, so that the optimum is diagonal.
            blend(mode, torch.diag(rest.movedim(mode - 2, 0).reshape(W.shape[mode], -1).sum(-1)))

    def row_parameters(self) -> Iterator[nn.Parameter]:
        if self.bias is not None:
            yield self.bias
        yield from super().row_parameters()

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "NetworkPredictor":
        """The predictive mixture at any cells, with all that depends on q alone computed once."""
        return NetworkPredictor(self, num_samples, seed)

    @torch.no_grad()
    def joint(self, num_samples: int, seed: int) -> Joint:
        """The same for cells together, see `manygp.functions`."""
        return NetworkJoint(self, seed)


class _Draws:
    """Offsets a ε + c R ε' of Gaussian vectors with covariances a² I + c² R Rᵀ, the same ε for all of them.

    Draws come in pairs of opposite sign, so that what is linear in them is free of error.
    """

    def __init__(self, R: Float[Tensor, "q q"], num_samples: int, generator: torch.Generator):
        shape = (2, (num_samples + 1) // 2, len(R))
        half = torch.randn(shape, dtype=R.dtype, device="cpu", generator=generator).to(R.device)
        both = torch.cat([half, -half], 1)[:, :num_samples]
        self.plain, self.shaped = both[0], both[1] @ R.T

    def along(self, v: Float[Tensor, "b q"], a: Float[Tensor, " b"], c: Float[Tensor, " b"]) -> Float[Tensor, "s b"]:
        """Products of the offsets with v."""
        return a * (self.plain @ v.T) + c * (self.shaped @ v.T)

    def squared(
        self, mean: Float[Tensor, "b q"], a: Float[Tensor, " b"], c: Float[Tensor, " b"], S: Float[Tensor, "q q"]
    ) -> Float[Tensor, "s b"]:
        """(mean + offset)ᵀ S (mean + offset), without the draws of every cell as vectors."""
        Sm, plain, shaped = mean @ S, self.plain @ S, self.shaped @ S
        fixed = (Sm * mean).sum(-1) + 2.0 * self.along(Sm, a, c)
        terms = ((plain * self.plain).sum(-1), (plain * self.shaped).sum(-1), (shaped * self.shaped).sum(-1))
        own = a.square() * terms[0][:, None] + 2.0 * a * c * terms[1][:, None] + c.square() * terms[2][:, None]
        return (fixed + own).clamp(min=0.0)


class NetworkPredictor:
    """Components of the predictive mixture of f = wᵀh at any cells.

    At a cell both factors are Gaussian: h with covariance v_f I + s Ω, w with v_w I + c γ_p Γ₂. Given one of them, f is
    Gaussian. So one is drawn and the other integrated: at every cell the one that leaves f more uncertain.
    """

    def __init__(self, model: RegressionNetwork, num_samples: int, seed: int):
        self.model = model
        self.Cf, self.Cw = model.whitening()
        self.spread = model.weights.spread(*model._output_modes)
        generator = torch.Generator().manual_seed(seed)
        self.h_draws = _Draws(model.latents.factor(1), num_samples, generator)
        self.w_draws = _Draws(model.weights.factor(1), num_samples, generator)
        # A few vectors of length L for each cell, and a few numbers for each cell and draw.
        self.width = 4 * len(model.latents.factor(1)) // num_samples + 8

    def _project(
        self, kernel: Kernel, C: Tensor, R: Tensor, x: Float[Tensor, "a d"], noise: Tensor | float
    ) -> tuple[Float[Tensor, "a n"], Float[Tensor, " a"], Float[Tensor, " a"]]:
        """A = k(x, X) C⁻ᵀ, the standard deviation that the inputs leave open, and that of what they tell."""
        X = self.model.inputs
        same = (x.unsqueeze(1) == X).all(-1)
        # At an input of the fit the noise is that of the fit; of equal inputs, that of the first.
        same &= same.cumsum(-1) == 1
        K = cross_covariance(kernel, x, X) + noise * same
        A = torch.linalg.solve_triangular(C, K.T, upper=False).T
        left = (kernel_diagonal(kernel, x) + noise - A.square().sum(-1)).clamp(min=0.0)
        return A, left.sqrt(), (A @ R).norm(dim=-1)

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "s b"], Float[Tensor, "s b"]]:
        """Means and variances of f at cells (x, outputs), one for each draw."""
        model = self.model
        inputs, row = distinct_inputs(x)
        A, v, s = self._project(model.latent_kernel, self.Cf, model.latents.factor(0), inputs, model.latent_noise)
        h, v, s = (A @ model.latents.mean)[row], v[row], s[row]
        A, u, c = self._project(model.weight_kernel, self.Cw, model.weights.factor(0), inputs, 0.0)
        distinct, column = outputs.unique(return_inverse=True)
        padding = pad_groups(column, len(distinct))
        w = padding.take(padding.pad(A[row]) @ model.weights.mean.index_select(0, distinct))
        u, c = u[row], c[row] * self.spread[outputs].sqrt()
        Ω, Γ, eye = model.latents.covariance(1), model.weights.covariance(1), torch.eye(h.shape[1]).to(h)
        mean = (w * h).sum(-1)
        if model.bias is not None:
            mean = mean + model.bias[outputs, 0]
        # var(f | h) = hᵀ(u² I + c² Γ₂)h and var(f | w) = wᵀ(v² I + s² Ω)w
        given_h = u.square() * self.h_draws.squared(h, v, s, eye) + c.square() * self.h_draws.squared(h, v, s, Γ)
        given_w = v.square() * self.w_draws.squared(w, u, c, eye) + s.square() * self.w_draws.squared(w, u, c, Ω)
        is_h_drawn = given_h.mean(0) > given_w.mean(0)
        offset = torch.where(is_h_drawn, self.h_draws.along(w, v, s), self.w_draws.along(h, u, c))
        return mean + offset, torch.where(is_h_drawn, given_h, given_w)
