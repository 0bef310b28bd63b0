"""The Ind-GP estimator."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manygp.data import Grid, Scaling, Table
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.estimators.config import Config
from manygp.estimators.noise import check_one_noise, hold_noise, is_fixed, one_scale, with_fixed_noise
from manygp.estimators.settings import (
    check_choice,
    check_inducing,
    check_size,
    resolve_device,
    resolve_dtype,
    resolve_seed,
)
from manygp.estimators.standardize import published_scaling
from manygp.estimators.summary import batch_lengthscales
from manygp.estimators.trained import Clock, TrainedEstimator, given
from manygp.initialise import Survey
from manygp.initialise.likelihood import start_alone
from manygp.initialise.processes import choose_num_points, start_processes
from manygp.likelihoods import Gaussian, PooledGaussian, make_likelihood
from manygp.models.exact import Columns, ExactBatch, stack_columns
from manygp.models.indgp import SparseIndependentModel, climb_evidence, maximise_evidence
from manygp.variational import CholeskyPosterior, InducingGP, KernelBatch, NaturalPosterior

logger = logging.getLogger("manygp")

# Exact up to so many cells of an output, and so many numbers of all factorisations together.
_MAX_CELLS, _MAX_NUMBERS = 1500, 50_000_000
_PAPER_NUM_INDUCING, _PAPER_NOISE_STD = 200, 0.1


@dataclass(frozen=True, kw_only=True)
class IndGPConfig(Config):
    """An Ind-GP with nothing left open.

    Settings of `IndGP` have their names; exact GPs have no `num_inducing`, but know so many inputs and cells of
    an output.
    """

    num_inducing: int | None
    kernel: Any
    share_kernel: bool
    likelihood: Any
    num_cells: int | None = None
    num_inputs: int | None = None

    def build(self, generator: torch.Generator | None = None) -> ExactBatch | SparseIndependentModel:
        d, p, m, fast = self.num_features, self.num_outputs, self.num_inducing, self.natural
        size, likelihood = 1 if self.share_kernel else p, _own_likelihood(self.likelihood, p, self.share_kernel)
        kernels = KernelBatch(self.kernel, d, size, log_parameters=fast)
        if m is None:
            empty = torch.zeros(p, self.num_cells or 0, dtype=torch.int64)
            x = torch.zeros(self.num_inputs or 0, d, dtype=torch.float64)
            return ExactBatch(kernels, likelihood, Columns(x, empty, empty.bool(), empty.double(), torch.arange(p)))
        posterior = NaturalPosterior(p, m) if fast else CholeskyPosterior(p, m)
        jitter = 1e-6 if fast else 1e-8
        processes = InducingGP(kernels, torch.zeros(size, m, d), posterior, jitter, sparse=fast)
        likelihood.sparse_rows = fast
        return SparseIndependentModel(processes, likelihood, None if likelihood.is_affine else torch.zeros(p, 1))


def _own_likelihood(likelihood: Any, num_outputs: int, share_kernel: bool) -> Any:
    """The likelihood that was given, Gaussian noise of each output's own unless kernels are shared."""
    if isinstance(likelihood, str) and likelihood == "gaussian":
        return make_likelihood(likelihood, num_outputs, per_output=not share_kernel)
    return make_likelihood(likelihood, num_outputs)


@dataclass(repr=False, eq=False)
class IndGP(TrainedEstimator):
    """Independent GPs, one for each output: what there is to gain from the other outputs is left out.

    Outputs with few cells are exact GPs, fitted all at once by maximum evidence; otherwise every output is a sparse
    variational GP. See `docs/models/indgp.md`.

    Parameters
    ----------
    num_inducing
        Inducing points of each output; None for exact GPs; "auto" is exact where that is affordable.
    kernel
        "rbf", "matern12", "matern32", "matern52", with seasons as in "rbf * periodic(24)", see `docs/seasons.md`, or a
        GPyTorch kernel on the inputs.
    share_kernel
        Whether all outputs have the same kernel and noise; otherwise each has its own.
    likelihood
        "gaussian", or any other name or likelihood, which is always sparse, but for a `Gaussian` with
        `learn_noise=False`. "pooled-gaussian" draws the noise of an output with few cells to that of all.
    epochs, batch_inputs, batch_outputs, learning_rate, dtype, freeze_likelihood, max_grad_norm
        Of the training of sparse GPs, see `TLVMOGP`; "auto" never freezes the likelihood. Exact GPs take `epochs` and
        `learning_rate` in preset "paper".
    standardize
        True scales inputs, and outputs one by one or all alike, whichever predicts held-out cells better ("paper": raw
        inputs, one scale for all outputs). "output" and "global" name a choice; False leaves everything raw.
    preset
        "fast" searches the maximum of the evidence from several starts; "paper" follows the published procedure: Adam
        from a fixed start.
    device, random_state, progress
        See `TLVMOGP`.

    Attributes
    ----------
    lengthscale_, outputscale_, noise_ : arrays
        Parameters of named kernels and of Gaussian noise in scaled units, one row for each output.
    is_exact_ : whether the GPs are exact
    history_ : `History`
    model_, scaling_ : the trained module, and the map between its units and the user's

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> model = manygp.IndGP().fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    num_inducing: int | str | None = "auto"
    share_kernel: bool = False

    _config_class = IndGPConfig
    _scalings = (True, False, "output", "global")

    @property
    def is_exact_(self) -> bool:
        """Whether the outputs are exact GPs."""
        self._check_fitted()
        return isinstance(self.model_, ExactBatch)

    @property
    def lengthscale_(self) -> FloatArray:
        """Lengthscales of the inputs in scaled units, shape (p, d), or (1, d) for a shared kernel."""
        lengthscale, _ = self._scales()
        units = 1.0 if isinstance(self.model_, ExactBatch) else self.model_.processes.units
        return self._numbers(lengthscale * units)

    @property
    def outputscale_(self) -> FloatArray:
        """Prior variances of the functions in scaled units, shape (p,), or (1,) for a shared kernel."""
        return self._numbers(self._scales()[1])

    @property
    def noise_(self) -> FloatArray:
        """Noise variances in scaled units, shape (p,), or (1,) for one that all outputs share."""
        self._check_fitted()
        likelihood = self.model_.likelihood
        if not isinstance(likelihood, Gaussian):
            raise SettingError(f"likelihood={self.likelihood!r} has no noise variance: only Gaussian ones have.")
        own = likelihood.deviation.exp() if isinstance(likelihood, PooledGaussian) else 1.0
        return self._numbers(likelihood.noise * own)

    def _lengthscales(self) -> FloatArray | None:
        model = self.model_
        if isinstance(model, ExactBatch):
            return batch_lengthscales(model.kernels, 1.0, self.scaling_.x_scale)
        return batch_lengthscales(model.processes.kernels, model.processes.units, self.scaling_.x_scale)

    def _scales(self) -> tuple[Tensor, Tensor]:
        self._check_fitted()
        kernels = self.model_.kernels if isinstance(self.model_, ExactBatch) else self.model_.processes.kernels
        if not kernels.is_fused:
            raise SettingError("A kernel of your own keeps its parameters itself: look at model_.kernels.kernel.")
        return kernels.scales(kernels.rows())

    @staticmethod
    def _numbers(values: Tensor) -> FloatArray:
        return values.detach().cpu().numpy()

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("num_inducing", self.num_inducing, automatic=("auto", None))
        check_choice("share_kernel", self.share_kernel, (True, False))
        if self.num_inducing is None and not self._can_be_exact():
            raise SettingError(
                f"num_inducing=None asks for exact GPs, which need likelihood='gaussian', not {self.likelihood!r}: "
                "use a number or 'auto'."
            )
        if self.share_kernel:
            check_one_noise(self.standardize, self.likelihood)

    def _fit_table(self, table: Table) -> None:
        self._check_settings()
        table = table.compact()
        if not self._is_affordable(table):
            super()._fit_table(table)
            return
        resolve_dtype(self.dtype)
        seed, device = self._journal.seed(resolve_seed(self.random_state)), resolve_device(self.device)
        clock = Clock()
        rng = np.random.default_rng(seed)
        survey = self._survey(table, rng)
        scaling = self._scaling(survey)
        model = self._exact_model(stack_columns(table, scaling)).to(device)
        if not self._preset.from_data:
            model.likelihood.noise = torch.tensor(_PAPER_NOISE_STD**2, dtype=torch.float64)
        hold_noise(model.likelihood, self.likelihood, scaling)
        if self._preset.from_data:
            found = with_fixed_noise(survey.own_functions, self.likelihood, scaling)
            clock.begun()
            start = found.lengthscale, found.signal, found.noise
            climb = maximise_evidence(model, *start, pool=True, journal=self._journal)
        else:
            rate = given(self.learning_rate, self._preset.learning_rate)
            climb = climb_evidence(model, given(self.epochs, self._preset.epochs), rate, self._journal)
        clock.tell(climb.history, self.__dict__.pop("_last_survey", None))
        self.model_, self.scaling_, self.history_, self._seed = model, scaling, climb.history, seed

    def _can_be_exact(self) -> bool:
        """Whether noise is Gaussian, and one for each kernel or not learned."""
        return is_fixed(self.likelihood) or (isinstance(self.likelihood, str) and self.likelihood == "gaussian")

    def _is_affordable(self, table: Table) -> bool:
        """Whether the outputs are to be exact GPs."""
        if self.num_inducing != "auto" or not self._can_be_exact():
            return self.num_inducing is None
        counts = table.count_per_output().astype(float)
        # With a shared kernel, outputs with all their cells need one factorisation in all.
        is_one = (
            self.share_kernel and isinstance(table, Grid) and table.num_observed == table.num_inputs * table.num_outputs
        )
        numbers = counts.max() ** 2 * (1 if is_one else len(counts))
        return counts.max() <= _MAX_CELLS and numbers <= _MAX_NUMBERS

    def _survey(self, table: Table, rng: np.random.Generator) -> Survey:
        standardize = one_scale(self.standardize, self.likelihood) if self.share_kernel else self.standardize
        return self._look_at(
            table, _own_likelihood(self.likelihood, table.num_outputs, self.share_kernel), rng, standardize
        )

    def _scaling(self, survey: Survey) -> Scaling:
        if self._preset.from_data:
            return survey.own_scaling
        return published_scaling(survey.standardize, survey.table, survey.likelihood.is_affine)

    def _begin(
        self, table: Table, rng: np.random.Generator, generator: torch.Generator
    ) -> tuple[SparseIndependentModel, Scaling]:
        """Sparse GPs at their start."""
        check_inducing(self.num_inducing, *self._places(table))
        survey = self._survey(table, rng)
        self._check_likelihood(survey.likelihood, table)
        scaling, found, m = self._scaling(survey), None, given(self.num_inducing, None)
        if self._preset.from_data:
            found = with_fixed_noise(survey.own_functions, self.likelihood, scaling)
            m = m or choose_num_points(table, scaling, found, table.num_outputs)
        m = m or min(_PAPER_NUM_INDUCING, table.num_inputs)
        model = self._untrained(table, num_inducing=m)
        assert isinstance(model, SparseIndependentModel)
        if found is None:
            nn.init.normal_(model.processes.Z, generator=generator)
        else:
            start_processes(model.processes, table, scaling, found, rng)
        noise = _PAPER_NOISE_STD**2 if found is None else found.noise
        level = start_alone(model.likelihood, table, scaling, noise, rng)
        if level is not None and model.bias is not None:
            model.bias.data.copy_(level.unsqueeze(-1))
        return model, scaling

    def _exact_model(self, columns: Columns) -> ExactBatch:
        (p, n), (inputs, d) = columns.y.shape, columns.x.shape
        sizes = {"num_features": d, "num_outputs": p, "num_inducing": None, "num_cells": n, "num_inputs": inputs}
        model: ExactBatch = self._restore(sizes)
        model.tell(columns)
        return model
