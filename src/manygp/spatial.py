"""Spatial transcriptomics in the manner of scanpy: genes that vary in space, and counts without their noise.

Both take an AnnData with places in `obsm["spatial"]` and write what they find into it. Needs the extra `anndata`.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from sklearn.base import clone

from manygp.data.labels import is_annotated
from manygp.data.names import find_outputs
from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError
from manygp.estimators import TLVMOGP, Estimator

__all__ = ["denoise", "variable_genes"]

# Draws times spots times genes that are held at a time.
_CHUNK = 4_000_000


def variable_genes(
    adata: Any,
    model: Estimator | None = None,
    *,
    exposure: Any = "auto",
    num_draws: int = 50,
    num_spots: int = 1000,
    random_state: int = 0,
    key: str = "manygp",
) -> pd.DataFrame:
    """Rank genes by the share of their variance that is spatial.

    Of a gene with the expected expression μ(x) and the variance v(x) of an observation around it, the share is

        var_x μ(x) / (var_x μ(x) + mean_x v(x))

    over the spots, at the same sequencing depth everywhere. It is computed for draws of μ from the posterior, so that
    it has a distribution: a gene with few counts has a wide one. `adata.var` gets the columns
    `f"{key}_spatial_share"` and `f"{key}_spatial_share_std"`.

    Parameters
    ----------
    adata
        Spots times genes, places in `obsm["spatial"]`; raw counts, or values that are taken for Gaussian.
    model
        A fitted model whose outputs are genes of `adata`, or one to fit. By default a `TLVMOGP`, for counts with a
        negative binomial likelihood. A model that looks for effects of single spots counts these as spatial;
        `corrections=()` leaves them out.
    exposure
        Sequencing depth of every spot, for a fit to counts; "auto" is library size. Where genes are few, library sizes
        follow the tissue, and shares are those of a gene among the others: give None to have all spots alike.
    num_draws
        Draws from the posterior.
    num_spots
        Spots over which variances are taken, evenly chosen; all if there are fewer.
    random_state
        Seed of the draws.
    key
        What names of columns begin with.

    Returns
    -------
    DataFrame
        A row for each gene, most spatial first: `spatial_share`, its posterior mean; `std`; `lower90` and `upper90`;
        `rank`, from 1.
    """
    if not isinstance(num_draws, int) or num_draws < 2:
        raise SettingError(f"num_draws={num_draws!r} is no number of draws: use a whole number of at least 2.")
    if not isinstance(num_spots, int) or num_spots < 2:
        raise SettingError(f"num_spots={num_spots!r} is no number of spots: use a whole number of at least 2.")
    fitted = _fitted(adata, model, exposure)
    spots = np.unique(np.linspace(0, adata.n_obs - 1, min(num_spots, adata.n_obs)).round().astype(int))
    places = np.asarray(adata.obsm["spatial"], dtype=np.float64)[spots]
    functions, genes = fitted.sample_functions(num_draws, random_state), list(adata.var_names)
    chunk = max(1, _CHUNK // (num_draws * len(spots)))
    shares = np.concatenate(
        [
            _shares(fitted, functions(places, genes[i : i + chunk]), genes[i : i + chunk])
            for i in range(0, len(genes), chunk)
        ],
        axis=1,
    )
    lower, upper = np.quantile(shares, (0.05, 0.95), axis=0)
    found = {"spatial_share": shares.mean(0), "std": shares.std(0, ddof=1), "lower90": lower, "upper90": upper}
    frame = pd.DataFrame(found, index=adata.var_names)
    adata.var[f"{key}_spatial_share"], adata.var[f"{key}_spatial_share_std"] = frame["spatial_share"], frame["std"]
    frame = frame.sort_values("spatial_share", ascending=False, kind="stable")
    return frame.assign(rank=np.arange(1, len(frame) + 1))


def denoise(adata: Any, model: Estimator | None = None, *, exposure: Any = "auto", key: str = "manygp") -> Estimator:
    """Write smooth expression into `adata`: what the model expects at every spot, without noise of counting.

    `layers[f"{key}_mean"]` and `layers[f"{key}_std"]` are predictions at the same sequencing depth everywhere, and
    `varm[f"{key}_latent"]` a map of the genes, see `Estimator.annotate`.

    Parameters
    ----------
    adata, model, exposure, key
        As in `variable_genes`.

    Returns
    -------
    Estimator
        The fitted model, for `variable_genes` and others.
    """
    fitted = _fitted(adata, model, exposure)
    fitted.annotate(adata, key=key)
    return fitted


def _shares(fitted: Any, f: FloatArray, genes: list[Any]) -> FloatArray:
    """Share of each draw and gene, (s, g), from functions (s, n, g) in the user's units."""
    likelihood, chosen = fitted.model_.likelihood, find_outputs(fitted.output_names_, genes)
    if likelihood.is_affine:
        mean, variance = f, np.square(np.broadcast_to(fitted.noise_std_, len(fitted.output_names_))[chosen])[None]
    else:
        device = next(fitted.model_.parameters()).device
        outputs = torch.as_tensor(chosen, device=device).expand(f.shape)
        with torch.no_grad():
            moments = likelihood.conditional_moments(torch.as_tensor(f, device=device), outputs)
        mean, variance = moments[0].cpu().numpy(), moments[1].cpu().numpy().mean(1)
    # var_x μ / (var_x μ + mean_x v)
    spatial = mean.var(1)
    return spatial / np.maximum(spatial + variance, np.finfo(np.float64).tiny)


def _fitted(adata: Any, model: Any, exposure: Any) -> Any:
    """The model, fitted to the AnnData if it is not."""
    if not is_annotated(adata):
        raise DataError(f"adata is a {type(adata).__name__}; give an AnnData of spots times genes.")
    if "spatial" not in adata.obsm:
        raise DataError(
            f"The AnnData has no obsm['spatial'] (obsm holds {list(adata.obsm)}); put the places of the spots there."
        )
    if hasattr(model, "model_"):
        unknown = [name for name in adata.var_names if name not in set(model.output_names_)]
        if unknown:
            raise DataError(f"{unknown[0]!r} is no output of the model; give the genes that it was fitted to.")
        return model
    is_counts = _is_counts(adata.X)
    if model is None:
        model = TLVMOGP(
            likelihood="negative-binomial" if is_counts else "gaussian", corrections=() if is_counts else ("noise",)
        )
    return clone(model).fit(adata, exposure=exposure) if is_counts else clone(model).fit(adata)


def _is_counts(values: Any) -> bool:
    values = values.data if sparse.issparse(values) else np.asarray(values)
    return bool((values >= 0).all() and (values == np.rint(values)).all())
