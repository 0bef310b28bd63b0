"""The model of a T-LVMOGP from its settings and sizes, and the sizes of a model, as they are saved."""

from typing import TYPE_CHECKING, Any

import torch

from manygp.data.coordinates import CoordinateMap
from manygp.embeddings import embedding_dim, make_embedding
from manygp.kernels import make_kernel
from manygp.likelihoods import Gaussian, Likelihood, likelihood_name, make_likelihood
from manygp.models import TransformedLatentModel
from manygp.models.coordinates import with_coordinates
from manygp.models.neighbors import ObservedCells
from manygp.terms import make_term
from manygp.variational import CholeskyPosterior, InducingGP, Latents, NaturalPosterior

if TYPE_CHECKING:
    from manygp.estimators.tlvmogp import TLVMOGP

__all__ = ["build_model", "chosen_likelihood", "sizes_of"]

_JITTER, _PAPER_JITTER, _SITE_JITTER = 1e-9, 1e-8, 1e-6


def build_model(
    settings: "TLVMOGP", sizes: dict[str, Any], generator: torch.Generator | None
) -> TransformedLatentModel:
    """An untrained model; what is random is drawn from a generator, or from one that is always the same."""
    paper, h, p, d = settings.preset == "paper", sizes["latent_dim"], sizes["num_outputs"], sizes["num_features"]
    bound: Any = sizes["spectral_bound"] if settings.spectral_bound == "auto" else settings.spectral_bound
    embedding = make_embedding(settings.embedding, d + h, settings.num_blocks, bound, generator)
    likelihood = make_likelihood(sizes.get("likelihood", settings.likelihood), p)
    # Cell by cell, variances are differences, which lose the digits that the jitter does not keep.
    jitter = _SITE_JITTER if not isinstance(likelihood, Gaussian) else _PAPER_JITTER if paper else _JITTER
    e, m = embedding_dim(embedding, d + h), sizes["num_inducing"]
    gp = InducingGP(
        make_kernel(settings.kernel, e, log_parameters=not paper),
        torch.zeros(m, e),
        CholeskyPosterior(m) if paper else NaturalPosterior(m),
        sizes.get("jitter", jitter),
        settings.bound,
    )
    latents = Latents(
        p,
        h,
        settings.latent_posterior,
        torch.zeros(p, h) if sizes["prior_mean"] else None,
        settings.latent_prior_variance,
        sparse=not paper,
        relative=not paper,
        shared_draws=paper,
    )
    model = TransformedLatentModel(
        *(embedding, gp, latents, likelihood, torch.ones(d + h)),
        terms=[make_term(name, own, p, d, h, not paper, generator) for name, *own in sizes["terms"]],
        sparse=not paper,
        linear_share=float(sizes.get("linear_share", 0.0)),
        num_neighbors=sizes["num_neighbors"],
    )
    if sizes.get("observed") is not None:
        model.observed = ObservedCells(*sizes["observed"])
    if sizes["coordinates"] is not None:
        with_coordinates(model, CoordinateMap.from_numbers(sizes["coordinates"]))
    return model


def sizes_of(model: TransformedLatentModel) -> dict[str, Any]:
    """What `build_model` has to know of a model, as plain numbers, but for the name of its likelihood."""
    latents, cells = model.latents, model.observed
    return {
        "num_features": len(model.units) - latents.dim,
        "num_outputs": latents.num_outputs,
        "latent_dim": latents.dim,
        "num_inducing": len(model.gp.Z),
        "num_neighbors": model.num_neighbors,
        "spectral_bound": getattr(model.embedding, "spectral_bound", None),
        "prior_mean": latents.prior_mean is not None,
        "terms": [[term.name, *term.sizes()] for term in model.terms],
        "observed": None if cells is None else [*cells.inputs.shape, len(cells.y)],
        "coordinates": None if model.coordinates is None else model.coordinates.map.numbers(),
        "linear_share": model.linear_share,
        "jitter": model.gp.jitter,
    }


def chosen_likelihood(given: Any, likelihood: Likelihood) -> dict[str, str]:
    """The name of the likelihood where it is not the one that was set."""
    name = likelihood_name(likelihood)
    return {"likelihood": name} if isinstance(given, str) and name != given else {}
