"""The cells of a prediction together, in the user's units."""

from collections.abc import Callable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from manygp.data import Scaling
from manygp.data.groups import neighborly
from manygp.data.table import FloatArray, IntArray
from manygp.errors import SettingError
from manygp.functions import Joint, View, moments_of_sums
from manygp.likelihoods import Gaussian, Likelihood, Noiseless
from manygp.memory import bytes_in_words, check_memory
from manygp.quadrature import gauss_hermite

# Numbers of views that are held at a time, and of covariances of a few cells.
_CHUNK_NUMBERS, _MAX_COVARIANCES = 8_000_000, 200_000_000
# Cells whose observation noise is drawn together, whatever the chunks are.
_NOISE_CELLS = 4096
_NODES = 12
# Outputs that are close in a row are so many at a time.
_OUTPUTS_TOGETHER = 16


def exposure_of(exposure: FloatArray | None, width: int, device: torch.device) -> Callable[[IntArray], Tensor | None]:
    """Exposure of cells by number, from that of rows of `width` cells."""
    return lambda cells: None if exposure is None else torch.as_tensor(exposure[cells // width], device=device)


class JointCells:
    """The joint distribution of so many cells of a prediction, which are known by number.

    The joint has views of cells in scaled units, `locate` their inputs (b, d) and outputs (b,) there. A likelihood
    turns f into an observation, and is told the exposure of cells, or the like; the scaling is the way back to the
    user's units.
    """

    def __init__(
        self,
        joint: Joint,
        locate: Callable[[IntArray], tuple[Tensor, Tensor]],
        num_cells: int,
        likelihood: Likelihood,
        scaling: Scaling,
        exposure: Callable[[IntArray], Tensor | None],
    ):
        self.joint, self._locate, self.num_cells = joint, locate, num_cells
        self.likelihood, self._scaling, self._exposure = likelihood, scaling, exposure
        self._chunk_cells = max(32, _CHUNK_NUMBERS // (joint.num_components * joint.width))

    @property
    def is_gaussian(self) -> bool:
        """Whether values are Gaussian given the draws of latent vectors, so that sums have closed forms."""
        return isinstance(self.likelihood, Gaussian | Noiseless)

    @torch.inference_mode(False)
    @torch.no_grad()
    def view(self, cells: IntArray) -> View:
        """Some cells in scaled units."""
        return self.joint(*self._locate(cells))

    def outputs(self, cells: IntArray) -> IntArray:
        """Outputs of some cells."""
        return self._locate(cells)[1].cpu().numpy()

    def _order(self) -> IntArray:
        """Ranks of the cells, one output after another: what belongs to an output, and to those close, is made once."""
        rank, outputs = np.empty(self.num_cells, dtype=np.int64), self.outputs(np.arange(self.num_cells))
        if self.joint.output_places is not None:
            outputs = neighborly(self.joint.output_places, _OUTPUTS_TOGETHER)[outputs]
        rank[np.argsort(outputs, kind="stable")] = np.arange(self.num_cells)
        return rank

    # -- draws ---------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    @torch.no_grad()
    def sample(self, draws: IntArray, seed: int) -> FloatArray:
        """Values of all cells in the draws with these numbers, shape (n, cells)."""
        check_memory(f"sample({len(draws)})", 8.0 * len(draws) * (self.num_cells + 4 * self._chunk_cells))
        numbers, result = torch.as_tensor(draws), np.empty((len(draws), self.num_cells))
        cells = np.argsort(self._order())
        for part in _parts(cells, self._chunk_cells):
            result[:, part] = self.view(part).draw(numbers, seed).cpu().numpy()
        for start in range(0, self.num_cells, _NOISE_CELLS):
            stop = min(start + _NOISE_CELLS, self.num_cells)
            f = result[:, start:stop]
            if not isinstance(self.likelihood, Noiseless):
                self._add_noise(f, start, draws, seed)
            f[:] = self._scaling.unscale_mean(f, self.outputs(np.arange(start, stop)))
        return result

    def _add_noise(self, f: FloatArray, start: int, draws: IntArray, seed: int) -> None:
        """Turn f of cells from a number on into observations, by random numbers that go by that and draw alone."""
        cells = np.arange(start, start + f.shape[1])
        _, outputs = self._locate(cells)
        exposure = self._exposure(cells)
        for row, draw in zip(f, draws, strict=True):
            mixed = (seed * 0x9E3779B97F4A7C15 + int(draw) * 0xD1B54A32D192ED03 + start + 1) % (1 << 63)
            generator = torch.Generator(outputs.device).manual_seed(mixed)
            values = torch.as_tensor(row, device=outputs.device)
            row[:] = self.likelihood.sample(values, outputs, generator, exposure).cpu().numpy()

    # -- second moments ------------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    @torch.no_grad()
    def covariance(self, a: IntArray, b: IntArray) -> FloatArray:
        """Covariances between some cells and others."""
        size = self.joint.num_components * len(a) * len(b)
        if size > _MAX_COVARIANCES:
            raise SettingError(
                f"Covariances of {len(a):,} with {len(b):,} cells take {bytes_in_words(8.0 * size)}: choose fewer, or "
                "ask for what they are for by aggregate, probability or sample, which need no such matrix."
            )
        cells, place = np.unique(np.concatenate([a, b]), return_inverse=True)
        view, at = self.view(cells), torch.as_tensor(place)
        i, j = at[: len(a)].to(view.mean.device), at[len(a) :].to(view.mean.device)
        mean, covariance = view.mean, view.covariance(i, j)
        if not self.is_gaussian:
            covariance, mean = self._of_values(view, cells, i, j, covariance)
        # Of a mixture: E cov + cov of means
        centered = mean - mean.mean(0)
        total = covariance.mean(0) + centered[:, i].T @ centered[:, j] / len(mean)
        if not isinstance(self.likelihood, Noiseless):
            same = torch.as_tensor(a[:, None] == b, device=total.device)
            total = total + torch.where(same, self._noise(view, cells)[i].unsqueeze(-1), 0.0)
        scale = self._scaling.y_scale[self.outputs(cells)][place]
        return scale[: len(a), None] * total.cpu().numpy() * scale[len(a) :]

    def _noise(self, view: View, cells: IntArray) -> Tensor:
        """Variance of the observation noise of cells, averaged over f."""
        _, outputs = self._locate(cells)
        x, w = gauss_hermite(1 if self.is_gaussian else 2 * _NODES, view.mean)
        f = view.mean + (0.0 if self.is_gaussian else view.variance().sqrt()) * x.view(-1, 1, 1)
        noise = self.likelihood.conditional_moments(f, outputs.expand(f.shape), self._exposure(cells))[1]
        return (w.view(-1, 1, 1) * noise).sum(0).mean(0)

    def _of_values(self, view: View, cells: IntArray, i: Tensor, j: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        """Covariances of E[y | f], and its means, by quadrature over pairs of f."""
        _, outputs = self._locate(cells)
        exposure = self._exposure(cells)
        every = torch.arange(len(cells), device=C.device)
        sd = view.variance().clamp(min=1e-30).sqrt()
        x, w = gauss_hermite(_NODES, view.mean)

        def value(f: Tensor, at: Tensor) -> Tensor:
            which = outputs[at].expand(f.shape)
            return self.likelihood.conditional_moments(f, which, None if exposure is None else exposure[at])[0]

        mean = sum(weight * value(view.mean + sd * node, every) for node, weight in zip(x, w, strict=True))
        assert isinstance(mean, Tensor)
        # f' = μ' + σ' (ρ ε + √(1 − ρ²) ε') beside f = μ + σ ε
        ρ = (C / (sd[:, i].unsqueeze(-1) * sd[:, j].unsqueeze(-2))).clamp(-1.0, 1.0)
        product = torch.zeros_like(C)
        for node, weight in zip(x, w, strict=True):
            left = value(view.mean[:, i] + sd[:, i] * node, i).unsqueeze(-1)
            inner = torch.zeros_like(C)
            for other, own in zip(x, w, strict=True):
                z = ρ * node + (1.0 - ρ.square()).sqrt() * other
                inner = inner + own * value(view.mean[:, j].unsqueeze(-2) + sd[:, j].unsqueeze(-2) * z, j)
            product = product + weight * left * inner
        return product - mean[:, i].unsqueeze(-1) * mean[:, j].unsqueeze(-2), mean

    @torch.inference_mode(False)
    @torch.no_grad()
    def variance(self, cells: IntArray) -> FloatArray:
        """Variances of some cells."""
        if not self.is_gaussian:
            return np.concatenate([self.covariance(part, part).diagonal() for part in _parts(cells, 64)])
        found = []
        for part in _parts(cells, self._chunk_cells):
            view = self.view(part)
            variance = view.variance().mean(0) + view.mean.var(0, unbiased=False)
            if not isinstance(self.likelihood, Noiseless):
                variance = variance + self._noise(view, part)
            found.append(variance.cpu().numpy() * self._scaling.y_scale[self.outputs(part)] ** 2)
        return np.concatenate(found)

    # -- sums ----------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    @torch.no_grad()
    def moments_of_sums(self, W: sparse.csr_array) -> tuple[FloatArray, FloatArray]:
        """Means and variances of W y in every component of the mixture, shape (s, g) each, for Gaussian values."""
        outputs = self.outputs(np.arange(self.num_cells))
        scaled = sparse.csr_array(W.multiply(self._scaling.y_scale[outputs]))
        weight = self.joint.num_components * self.joint.num_points**2
        mean, variance = moments_of_sums(self.view, scaled, self._order(), self._chunk_cells, weight)
        result = mean.cpu().numpy() + W @ self._scaling.y_center[outputs], variance.cpu().numpy()
        if isinstance(self.likelihood, Noiseless):
            return result
        which = torch.as_tensor(outputs, device=mean.device)
        told = self._exposure(np.arange(self.num_cells))
        noise = self.likelihood.conditional_moments(torch.zeros(len(which)).to(mean), which, told)[1].cpu().numpy()
        return result[0], result[1] + scaled.power(2) @ noise


def _parts(cells: IntArray, size: int) -> list[IntArray]:
    return np.split(cells, np.arange(size, len(cells), size))
