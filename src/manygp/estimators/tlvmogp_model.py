"""The configuration of a T-LVMOGP, which builds its model."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from manygp.data.coordinates import CoordinateMap
from manygp.embeddings import embedding_dim, is_near_identity, make_embedding
from manygp.estimators.config import Config
from manygp.kernels import make_kernel
from manygp.likelihoods import Gaussian, make_likelihood
from manygp.models import TransformedLatentModel
from manygp.models.cell_noise import CellNoise
from manygp.models.coordinates import with_coordinates
from manygp.models.neighbors import ObservedCells
from manygp.terms import make_term
from manygp.variational import CholeskyPosterior, InducingGP, Latents, NaturalPosterior

__all__ = ["TLVMOGPConfig"]

_JITTER, _PAPER_JITTER, _SITE_JITTER = 1e-9, 1e-8, 1e-6


@dataclass(frozen=True, kw_only=True)
class TLVMOGPConfig(Config):
    """A T-LVMOGP with nothing left open.

    Settings of `TLVMOGP` have their names; `terms` are names of terms, each with sizes of its own; `observed` are
    sizes of the cells that predictions from neighbours look at: inputs, features, cells, and whether their noise is
    known; `cell_noise` are sizes of the noise that cells have beside that of their outputs, if they have any: inputs,
    and whether it is learnt for each of them.
    """

    latent_dim: int
    num_inducing: int
    num_neighbors: int = 0
    embedding: Any
    num_blocks: int
    spectral_bound: float | None
    kernel: Any
    likelihood: Any
    bound: str
    latent_posterior: str
    latent_prior_variance: float
    prior_mean: bool
    terms: tuple[tuple[Any, ...], ...] = ()
    coordinates: dict[str, Any] | None = None
    observed: tuple[int, ...] | None = None
    cell_noise: tuple[int, ...] | None = None
    linear_share: float = 0.0
    jitter: float | None = None

    def build(self, generator: torch.Generator | None = None) -> TransformedLatentModel:
        p, d, h, m, fast = self.num_outputs, self.num_features, self.latent_dim, self.num_inducing, self.natural
        embedding = make_embedding(self.embedding, d + h, self.num_blocks, self.spectral_bound, generator)
        likelihood, e = make_likelihood(self.likelihood, p), embedding_dim(embedding, d + h)
        # Cell by cell, variances are differences, which lose the digits that the jitter does not keep.
        jitter = _SITE_JITTER if not isinstance(likelihood, Gaussian) else _JITTER if fast else _PAPER_JITTER
        # Steps on counts were tried with the plain kernel.
        has_latents = fast and is_near_identity(embedding) and likelihood.is_affine
        gp = InducingGP(
            make_kernel(self.kernel, e, fast, num_latents=h if has_latents else 0, num_inputs=d),
            torch.zeros(m, e),
            NaturalPosterior(m) if fast else CholeskyPosterior(m),
            jitter if self.jitter is None else self.jitter,
            self.bound,
        )
        latents = Latents(
            *(p, h, self.latent_posterior, torch.zeros(p, h) if self.prior_mean else None, self.latent_prior_variance),
            sparse=fast,
            relative=fast,
            shared_draws=not fast,
        )
        model = TransformedLatentModel(
            *(embedding, gp, latents, likelihood, torch.ones(d + h)),
            terms=[make_term(name, sizes, p, d, h, fast) for name, *sizes in self.terms],
            sparse=fast,
            linear_share=float(self.linear_share),
            num_neighbors=self.num_neighbors,
        )
        if has_latents:
            model.box = torch.tensor([[-math.inf], [math.inf]], dtype=torch.float64).expand(2, d).clone()
        if self.cell_noise is not None:
            num_inputs, is_learned = self.cell_noise
            model.cell_noise = CellNoise(p, num_inputs, d, bool(is_learned))
        if self.observed is not None:
            model.observed = ObservedCells(*self.observed)
        if self.coordinates is not None:
            with_coordinates(model, CoordinateMap.from_numbers(self.coordinates))
        return model

    def after(self, model: TransformedLatentModel) -> "TLVMOGPConfig":
        """The configuration of a model that was built like this and has been trained, corrected or adapted since."""
        cells = model.observed
        return replace(
            self,
            num_outputs=model.num_outputs,
            terms=tuple((term.name, *term.sizes()) for term in model.terms),
            observed=None if cells is None else cells.sizes(),
            linear_share=model.linear_share,
            jitter=model.gp.jitter,
        )
