"""The SGPRN estimator."""

import logging
import math
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch

from manygp.data import Scaling, Table
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.estimators.config import Config
from manygp.estimators.settings import check_choice, check_kernel, check_size
from manygp.estimators.standardize import published_scaling
from manygp.estimators.trained import Rng, Start, TrainedEstimator, given
from manygp.initialise.sgprn import initialise, initialise_at_prior
from manygp.kernels import make_kernel
from manygp.likelihoods import Likelihood, make_likelihood
from manygp.models.sgprn import RegressionNetwork, choose_output_shape

logger = logging.getLogger("manygp")

_PAPER_NUM_LATENTS, _PAPER_NOISE_STD = 3, 0.1
# Numbers of the posterior that are worth a try: about 12 gigabytes with their copies in training.
_MAX_NUMBERS = 500_000_000


@dataclass(frozen=True, kw_only=True)
class SGPRNConfig(Config):
    """An SGPRN with nothing left open; settings of `SGPRN` have their names."""

    num_inputs: int
    num_latents: int
    output_shape: tuple[int, ...]
    kernel: Any
    weight_kernel: Any
    likelihood: Any

    def build(self, generator: torch.Generator | None = None) -> RegressionNetwork:
        fast, d, p = self.natural, self.num_features, self.num_outputs
        likelihood = make_likelihood(self.likelihood, p)
        likelihood.sparse_rows = fast
        return RegressionNetwork(
            torch.zeros(self.num_inputs, d),
            make_kernel(self.kernel, d, log_parameters=fast),
            make_kernel(self.weight_kernel, d, log_parameters=fast),
            likelihood,
            p,
            self.num_latents,
            self.output_shape,
            natural=fast,
            bias=torch.zeros(p, 1) if fast else None,
        )


@dataclass(repr=False, eq=False)
class SGPRN(TrainedEstimator):
    """Scalable Gaussian process regression network: a mixture of latent GPs whose weights vary over the inputs.

    Latent processes and weights are known at the inputs of the table, with Kronecker covariances over inputs, processes
    and outputs, which are laid out as a tensor. See `docs/models/sgprn.md` for the model and its cost: it is for tables
    with few inputs.

    Parameters
    ----------
    num_latents
        Latent processes; "auto" chooses them by held-out cells.
    output_shape
        Sizes of a tensor that the outputs fill in their order, such as (latitudes, longitudes); "auto" takes one mode
        for few outputs and two for many.
    kernel, weight_kernel
        Kernels of the latent processes and of the weights: "rbf", "matern12", "matern32", "matern52", or a GPyTorch
        kernel on the inputs.
    likelihood
        Name of a likelihood, or a likelihood.
    epochs, batch_inputs, batch_outputs, learning_rate, standardize, dtype, device, random_state, progress
        See `TLVMOGP`; all work is in float64.
    num_samples
        Components of the predictive mixture.
    preset
        "fast" starts from a factorisation of the table with nearly constant weights and takes natural steps; "paper"
        follows the published procedure: Adam on everything from random means.
    freeze_likelihood, max_grad_norm
        See `TLVMOGP`; "auto" never freezes the likelihood. The paper clips at 10 on EEG.

    Attributes
    ----------
    process_mean_ : array of shape (n, num_latents)
    output_shape_ : sizes of the tensor of outputs
    history_ : `History`
    model_, scaling_ : the trained module, and the map between its units and the user's

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 6))
    >>> Y[10:20, 2] = np.nan
    >>> model = manygp.SGPRN(output_shape=(2, 3), epochs=20).fit(X, Y)
    >>> model.predict(X).shape
    (40, 6)
    """

    num_latents: int | str = "auto"
    output_shape: Any = "auto"
    weight_kernel: str | gpytorch.kernels.Kernel = "rbf"
    num_samples: int | str = 20

    # Products of mean-field posteriors are off by some thousandths, which is the noise of Poisson counts this large.
    _largest_counts = 1e5
    _config_class = SGPRNConfig

    @property
    def process_mean_(self) -> FloatArray:
        """Means M of the latent processes at the inputs of the fit, shape (n, num_latents)."""
        self._check_fitted()
        with torch.no_grad():
            return (self.model_.whitening()[0] @ self.model_.latents.mean).cpu().numpy()

    @property
    def output_shape_(self) -> tuple[int, ...]:
        """Sizes of the tensor that the outputs fill; it may have a few more places than there are outputs."""
        self._check_fitted()
        return self.model_.weights.shape[2:]

    # -- fitting -------------------------------------------------------------------------------------------------

    @property
    def _advice(self) -> str:
        # Covariances are of all inputs, whatever the batch.
        return "fit fewer inputs, or use TLVMOGP"

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("num_latents", self.num_latents, automatic=("auto",))
        check_kernel("weight_kernel", self.weight_kernel)

    def _fit_table(self, table: Table) -> None:
        # The posterior knows every input, and is larger than a grid of them.
        super()._fit_table(table.to_grid())

    def _begin_at_prior(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        scaling = published_scaling(self.standardize, table, likelihood.is_affine)
        model = self._make(table, scaling, given(self.num_latents, _PAPER_NUM_LATENTS))
        initialise_at_prior(model, _PAPER_NOISE_STD, generator)
        return model, scaling

    def _begin_at_data(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        wanted = given(self.num_latents, None)
        # The mean over outputs is a process of its own.
        survey = self._look_at(
            table, likelihood, rng, self.standardize, None if wanted is None else max(int(wanted) - 1, 1)
        )
        factors = survey.factors()
        L = wanted or (1 if factors is None else 1 + survey.rank)
        model = self._make(table, survey.scaling, L)
        logger.info("num_latents=%d, output_shape=%s", L, model.weights.shape[2:])
        initialise(model, survey, survey.functions(factors), factors)
        return model, survey.scaling

    def _make(self, table: Table, scaling: Scaling, num_latents: Any) -> RegressionNetwork:
        """An untrained model of this table."""
        shape = self._shape(table.num_outputs)
        n, p, L = table.num_inputs, table.num_outputs, int(num_latents)
        numbers = 2 * n**2 + n * L * (p + 1)
        if numbers > _MAX_NUMBERS:
            raise SettingError(
                f"{n} inputs, {p} outputs and num_latents={L} make a posterior of {numbers:.2g} numbers, but SGPRN "
                f"stops at {_MAX_NUMBERS:.2g}: use fewer latents, or SVLMC, which has inducing points."
            )
        model = self._untrained(table, num_inputs=n, num_latents=L, output_shape=shape)
        model.inputs.copy_(torch.as_tensor(scaling.scale_x(table.X)))
        return model

    def _shape(self, num_outputs: int) -> list[int]:
        if isinstance(self.output_shape, str):
            check_choice("output_shape", self.output_shape, ("auto",), " or whole numbers")
            return list(choose_output_shape(num_outputs))
        try:
            shape = [int(size) for size in self.output_shape]
        except (TypeError, ValueError):
            shape = []
        if not shape or min(shape) < 1 or math.prod(shape) != num_outputs:
            raise SettingError(
                f"output_shape={self.output_shape!r} does not fit: give whole numbers whose product is the number of "
                f"outputs, {num_outputs}, or 'auto'."
            )
        return shape

    def _work(self, model: RegressionNetwork, cells: float) -> float:
        n, L = model.latents.shape
        # Conjugate gradients on the weights: two products with the inputs and one with the processes each.
        return 20.0 * cells * L * (2 * n + L) + 6.0 * n**3
