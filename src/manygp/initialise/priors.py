"""Prior means of latent vectors: as given, by output name, or principal components of the outputs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from manygp.data import Grid, Scaling, Table
from manygp.data.coordinates import describe_outputs
from manygp.data.factorisation import choose_rank, factorise
from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError
from manygp.likelihoods import Likelihood
from manygp.variational import Latents

__all__ = ["PriorMeans", "prior_means"]

# Principal components of more cells than this come from some of the rows.
_MAX_CELLS = 30_000_000
# Rows and columns that the number of principal components is chosen on.
_RANK_SIDE = 1000


@dataclass(frozen=True, eq=False)
class PriorMeans:
    """Standardised prior means (p, h), and the centre and scale (h,) that they had."""

    mean: FloatArray
    center: FloatArray
    scale: FloatArray

    @classmethod
    def standardised(cls, given: FloatArray) -> "PriorMeans":
        """Give every column mean 0 and spread 1, so that one prior variance suits all of them."""
        center, spread = given.mean(0), given.std(0)
        scale = np.where(spread > 1e-12 * np.abs(center), spread, 1.0)
        return cls((given - center) / scale, center, scale)

    def set(self, latents: Latents) -> None:
        """Make them the prior of a model's latents, the same for all components of an output."""
        mean = np.repeat(self.mean, latents.num_outputs // len(self.mean), axis=0)
        latents.set_prior_mean(*(torch.as_tensor(part) for part in (mean, self.center, self.scale)))


def prior_means(
    given: Any, table: Table, latent_dim: int | str, likelihood: Likelihood, rng: np.random.Generator
) -> PriorMeans | None:
    """The prior means that the setting `latent_prior_mean` asks for, None if it asks for none."""
    if given is None:
        return None
    if isinstance(given, str):
        if given != "pca":
            raise SettingError(
                f"latent_prior_mean={given!r} is unknown: use 'pca', a table with a row for each output, or None."
            )
        return PriorMeans.standardised(_principal_components(table, latent_dim, likelihood, rng))
    try:
        values = describe_outputs(given, table.output_names, "latent_prior_mean")
    except DataError as error:
        raise SettingError(str(error)) from error
    if latent_dim not in ("auto", values.shape[1]):
        raise SettingError(
            f"latent_prior_mean has {values.shape[1]} columns but latent_dim is {latent_dim}: they must agree."
        )
    return PriorMeans.standardised(values)


def _principal_components(
    table: Table, latent_dim: int | str, likelihood: Likelihood, rng: np.random.Generator
) -> FloatArray:
    """Loadings of a masked factorisation, of log(1 + y) for counts."""
    if not isinstance(table, Grid) or table.num_outputs < 2:
        raise SettingError("latent_prior_mean='pca' needs several outputs that share their inputs: use None.")
    rows, most = np.arange(table.num_inputs), max(1, _MAX_CELLS // table.num_outputs)
    if likelihood.is_discrete or len(rows) > most:
        rows = np.sort(rng.choice(rows, most, replace=False)) if len(rows) > most else rows
        values = table.block(rows, np.arange(table.num_outputs))
        table = Grid(table.X[rows], np.log1p(values) if likelihood.is_discrete else values, table.output_names)
    scaling = Scaling.fit(table, outputs="global")
    rank = choose_rank(table, scaling, rng=rng, max_side=_RANK_SIDE).rank if latent_dim == "auto" else int(latent_dim)
    return factorise(table, scaling, rank, rng=rng).loadings
