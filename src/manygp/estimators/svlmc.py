"""The SV-LMC estimator."""

import logging
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from manygp.data import Table
from manygp.data.table import FloatArray
from manygp.estimators.config import Config
from manygp.estimators.noise import with_fixed_noise
from manygp.estimators.settings import check_choice, check_size
from manygp.estimators.standardize import published_scaling
from manygp.estimators.summary import batch_lengthscales
from manygp.estimators.trained import Rng, Start, TrainedEstimator, given
from manygp.initialise.processes import choose_num_points
from manygp.initialise.svlmc import initialise
from manygp.likelihoods import Gaussian, Likelihood, make_likelihood
from manygp.models.svlmc import MIXING_POSTERIORS, LinearMixingModel, Mixing
from manygp.variational import CholeskyPosterior, InducingGP, KernelBatch, NaturalPosterior

logger = logging.getLogger("manygp")

_PAPER = {"num_latents": 3, "num_inducing": 200}
_PAPER_NOISE_STD = 0.1


@dataclass(frozen=True, kw_only=True)
class SVLMCConfig(Config):
    """An SV-LMC with nothing left open; settings of `SVLMC` have their names."""

    num_latents: int
    num_inducing: int
    kernel: Any
    likelihood: Any
    mixing_posterior: str

    def build(self, generator: torch.Generator | None = None) -> LinearMixingModel:
        fast, L, m, d, p = self.natural, self.num_latents, self.num_inducing, self.num_features, self.num_outputs
        posterior = NaturalPosterior(L, m) if fast else CholeskyPosterior(L, m)
        kernels = KernelBatch(self.kernel, d, L, log_parameters=fast)
        # The published noise may fall far below the jitter that natural steps can do with.
        processes = InducingGP(kernels, torch.zeros(L, m, d), posterior, jitter=1e-6 if fast else 1e-8)
        likelihood = make_likelihood(self.likelihood, p)
        likelihood.sparse_rows = fast
        bias = torch.zeros(p, 1) if fast else None
        mixing = Mixing(p, L, self.mixing_posterior, has_prior=fast, sparse=fast)
        return LinearMixingModel(processes, likelihood, mixing, bias)


@dataclass(repr=False, eq=False)
class SVLMC(TrainedEstimator):
    """Linear model of coregionalisation: every output is a mixture of a few latent GPs, sparse and variational.

    See `docs/models/svlmc.md` for the model and its cost.

    Parameters
    ----------
    num_latents
        Latent processes; "auto" chooses them by held-out cells.
    num_inducing
        Inducing points of each latent process; "auto" follows from the roughness of the functions.
    kernel
        "rbf", "matern12", "matern32", "matern52", with seasons as in "rbf * periodic(24)", see `docs/seasons.md`, or a
        GPyTorch kernel on the inputs; every process has its own.
    likelihood
        Name of a likelihood, or a likelihood.
    mixing_posterior
        "diagonal" for mixing weights with variances, "point" for weights without; "auto" is that of the preset.
    epochs, batch_inputs, batch_outputs, learning_rate, standardize, dtype, device, random_state, progress
        See `TLVMOGP`.
    preset
        "fast" starts from a factorisation of the table, gives mixing weights a standard normal prior and a diagonal
        posterior, and takes natural steps; "paper" follows the published procedure: Adam on everything from random
        weights, which are points without a prior.
    freeze_likelihood, max_grad_norm
        See `TLVMOGP`; "auto" never freezes the likelihood.

    Attributes
    ----------
    mixing_ : array of shape (p, num_latents)
    bias_ : array of shape (p,)
    history_ : `History`
    model_, scaling_ : the trained module, and the map between its units and the user's

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> model = manygp.SVLMC(epochs=20).fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    num_latents: int | str = "auto"
    num_inducing: int | str = "auto"
    mixing_posterior: str = "auto"

    _reads_batches = True
    _config_class = SVLMCConfig

    @property
    def mixing_(self) -> FloatArray:
        """Mixing weights W in scaled units, shape (p, num_latents)."""
        self._check_fitted()
        return self.model_.mixing.mean.detach().cpu().numpy()

    @property
    def bias_(self) -> FloatArray:
        """Constants b in scaled units, shape (p,)."""
        self._check_fitted()
        if self.model_.bias is None:
            return np.zeros(self.n_outputs_)
        return self.model_.bias.detach().cpu().numpy()[:, 0]

    def _lengthscales(self) -> FloatArray | None:
        return batch_lengthscales(self.model_.processes.kernels, self.model_.processes.units, self.scaling_.x_scale)

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("num_latents", self.num_latents, automatic=("auto",))
        check_size("num_inducing", self.num_inducing, automatic=("auto",))
        check_choice("mixing_posterior", self.mixing_posterior, ("auto", *MIXING_POSTERIORS))

    def _begin_at_prior(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        scaling = published_scaling(self.standardize, table, likelihood.is_affine)
        m = given(self.num_inducing, min(_PAPER["num_inducing"], table.num_inputs))
        model = self._mixture(table, given(self.num_latents, _PAPER["num_latents"]), m)
        nn.init.normal_(model.processes.Z, generator=generator)
        nn.init.normal_(model.mixing.mean, generator=generator)
        if isinstance(model.likelihood, Gaussian):
            model.likelihood.noise = torch.tensor(_PAPER_NOISE_STD**2, dtype=torch.float64)
        return model, scaling

    def _begin_at_data(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        wanted = given(self.num_latents, None)
        survey = self._look_at(
            table, likelihood, rng, self.standardize, None if wanted is None else max(int(wanted) - 1, 1)
        )
        # The mean over outputs is a process of its own.
        L = wanted or (1 if table.num_outputs == 1 else 1 + survey.rank)
        factors = survey.factors(max(1, min(L - 1, table.num_inputs, table.num_outputs)))
        found = with_fixed_noise(survey.functions(factors), self.likelihood, survey.scaling)
        m = given(self.num_inducing, None) or choose_num_points(table, survey.scaling, found)
        logger.info("num_latents=%d, num_inducing=%d", L, m)
        model = self._mixture(table, L, m)
        initialise(model, survey, found, factors)
        return model, survey.scaling

    def _mixture(self, table: Table, num_latents: Any, num_inducing: Any) -> LinearMixingModel:
        posterior = given(self.mixing_posterior, "diagonal" if self._preset.natural else "point")
        sizes = {"num_latents": num_latents, "num_inducing": num_inducing, "mixing_posterior": posterior}
        return cast("LinearMixingModel", self._untrained(table, **sizes))
