"""The OILMM estimator."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from manygp.data import Cells, Grid, GridPlan, Scaling, Table
from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError
from manygp.estimators.config import Config
from manygp.estimators.noise import check_one_noise, one_scale, with_fixed_noise
from manygp.estimators.settings import check_choice, check_positive, check_size
from manygp.estimators.standardize import published_scaling
from manygp.estimators.summary import batch_lengthscales
from manygp.estimators.trained import Rng, Start, TrainedEstimator, given
from manygp.initialise.oilmm import initialise
from manygp.initialise.processes import choose_num_points
from manygp.likelihoods import Gaussian, Likelihood, make_likelihood
from manygp.models.coupled import COUPLED
from manygp.models.oilmm import ExactProcesses, OrthogonalMixingModel, climb_likelihood
from manygp.models.orthogonal import PROJECTIONS, Basis, Rows
from manygp.training import History
from manygp.variational import CellBatch, CholeskyPosterior, InducingGP, KernelBatch, NaturalPosterior

logger = logging.getLogger("manygp")

# Exact processes up to so many multiplications of their factorisations.
_MAX_EXACT_WORK = 5e9
# All rows at once up to so many numbers of their Gram matrices and of the covariances with inducing points.
_MAX_DIRECT_NUMBERS = 2e7
# Cells that an output must have for each of its numbers in the basis, for these to be learned.
_CELLS_PER_WEIGHT = 5
_MAX_STEPS = 200
# Rows with fewer cells than processes that a projection puts up with, as a share; numbers of the Gram matrices of all
# patterns of gaps that may be remembered.
_MAX_SHORT_ROWS, _MAX_PATTERN_NUMBERS = 0.01, 5e7
_MAX_GRID_CELLS = 20_000_000
_CHUNK_NUMBERS = 4_000_000
_PAPER = {"num_latents": 3, "num_inducing": 200}
_PAPER_NOISE_STD = 0.1


@dataclass(frozen=True, kw_only=True)
class OILMMConfig(Config):
    """An OILMM with nothing left open.

    Settings of `OILMM` have their names; `num_inducing` is None for exact processes, and a trained model knows so many
    inputs and patterns of observed outputs.
    """

    num_latents: int
    num_inducing: int | None
    kernel: Any
    likelihood: Any
    projection: str
    regularization: float
    num_inputs: int = 0
    num_patterns: int = 0

    def build(self, generator: torch.Generator | None = None) -> OrthogonalMixingModel:
        fast, q, m, d, p = self.natural, self.num_latents, self.num_inducing, self.num_features, self.num_outputs
        kernels = KernelBatch(self.kernel, d, q, log_parameters=fast)
        processes: InducingGP | ExactProcesses
        if m is None:
            processes = ExactProcesses(kernels, d)
        else:
            posterior = NaturalPosterior(q, m) if fast else CholeskyPosterior(q, m)
            processes = InducingGP(kernels, torch.zeros(q, m, d), posterior, jitter=1e-6 if fast else 1e-8)
        likelihood = make_likelihood(self.likelihood, p)
        assert isinstance(likelihood, Gaussian)
        return OrthogonalMixingModel(
            Basis(p, q, log_parameters=fast),
            processes,
            likelihood,
            self.projection,
            float(self.regularization),
            self.num_inputs,
            self.num_patterns,
        )


@dataclass(repr=False, eq=False)
class OILMM(TrainedEstimator):
    """Orthogonal instantaneous linear mixing model: a few latent GPs, mixed by a matrix with orthogonal columns.

    The orthogonality decouples the latent GPs, so that each is fitted to a projection of the table. See
    `docs/models/oilmm.md` for the model and its cost. Gaussian noise only.

    Parameters
    ----------
    num_latents
        Latent processes, of which no more are used than there are outputs; "auto" chooses them by held-out cells.
    num_inducing
        Inducing points of each latent process; None for exact GPs; "auto" is exact where that is affordable and rows
        are not coupled.
    kernel
        "rbf", "matern12", "matern32", "matern52", with seasons as in "rbf * periodic(24)", see `docs/seasons.md`, or a
        GPyTorch kernel on the inputs; every process has its own.
    likelihood
        "gaussian", or a `Gaussian` with one noise for all outputs; the model has no other. If that is not to be
        learned, all outputs have one scale.
    projection
        What stands for a row with gaps: "matched" moments, which suit rows that have many more cells than there are
        processes, or the "pseudo-inverse" of the paper. "coupled" takes such rows as they are, and sparse processes
        find each other. "auto" is "pseudo-inverse" for preset "paper"; for "fast" it is "coupled" where some rows have
        fewer cells than there are processes, and "matched" otherwise.
    learn_basis
        Whether the mixing matrix is learned with the rest or stays at that of a factorisation; "auto" learns it where
        outputs have cells enough.
    regularization
        Weight of the regularisation term, which is β₂ in the paper; 1 makes the bound a log likelihood. Coupled rows
        have no such term.
    epochs, batch_inputs, learning_rate, standardize, dtype, device, random_state, progress
        See `TLVMOGP`; a batch always holds all outputs. Where all rows fit into memory at once, "fast" takes L-BFGS
        steps, `epochs` of them at most, without batches.
    preset
        "fast" starts from a factorisation of the table; "paper" follows the published procedure: Adam on everything
        from a random basis.
    freeze_likelihood, max_grad_norm
        See `TLVMOGP`; "auto" never freezes the likelihood.

    Attributes
    ----------
    mixing_ : array of shape (p, num_latents)
    is_exact_ : whether the latent processes are exact GPs
    history_ : `History`
    model_, scaling_ : the trained module, and the map between its units and the user's

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> model = manygp.OILMM(num_latents=2).fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    num_latents: int | str = "auto"
    num_inducing: int | str | None = "auto"
    projection: str = "auto"
    learn_basis: bool | str = "auto"
    regularization: float = 1.0
    # The projection of a row needs all that was observed of it.
    batch_outputs: None = field(default=None, init=False)

    _config_class = OILMMConfig

    @property
    def is_exact_(self) -> bool:
        """Whether the latent processes are exact GPs."""
        self._check_fitted()
        return isinstance(self.model_.processes, ExactProcesses)

    @property
    def mixing_(self) -> FloatArray:
        """The mixing matrix H in scaled units, shape (p, num_latents)."""
        self._check_fitted()
        return self.model_.basis.H.detach().cpu().numpy()

    def _lengthscales(self) -> FloatArray | None:
        return batch_lengthscales(self.model_.processes.kernels, self.model_.processes.units, self.scaling_.x_scale)

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("num_latents", self.num_latents, automatic=("auto",))
        check_size("num_inducing", self.num_inducing, automatic=("auto", None))
        given = self.likelihood
        if not (given == "gaussian" if isinstance(given, str) else type(given) is Gaussian and given.is_shared):
            raise SettingError(
                f"likelihood={self.likelihood!r} is not for OILMM, whose projection needs Gaussian noise with one "
                "variance: use likelihood='gaussian', or SVLMC or TLVMOGP for other observations."
            )
        check_one_noise(self.standardize, given)
        check_choice("projection", self.projection, ("auto", *PROJECTIONS, COUPLED))
        if self.projection == COUPLED and self.num_inducing is None:
            raise SettingError(
                "num_inducing=None does not go with projection='coupled': exact processes need a projection."
            )
        check_choice("learn_basis", self.learn_basis, (True, False, "auto"))
        check_positive("regularization", self.regularization)
        if not self._preset.natural and self.num_inducing is None:
            raise SettingError("num_inducing=None goes with preset='fast' only: the published processes are sparse.")

    def _fit_table(self, table: Table) -> None:
        super()._fit_table(_as_grid(table))

    def _begin_at_prior(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        scaling = published_scaling(self.standardize, table, is_affine=True)
        m = given(self.num_inducing, min(_PAPER["num_inducing"], table.num_inputs))
        L = min(given(self.num_latents, _PAPER["num_latents"]), table.num_outputs)
        model = self._untrained(table, num_latents=L, num_inducing=m, projection=self._projection(table, L))
        assert isinstance(model.processes, InducingGP)
        nn.init.normal_(model.processes.Z, generator=generator)
        noise = torch.tensor(_PAPER_NOISE_STD**2, dtype=torch.float64)
        basis = model.basis
        weight = torch.randn(basis.weight.shape, dtype=torch.float64, generator=generator)
        basis.start(weight, basis.S.detach(), noise.expand_as(basis.raw_noise))
        basis.seen.copy_(torch.as_tensor(table.count_per_output() > 0))
        basis.weight.requires_grad_(self.learn_basis is not False)
        model.likelihood.noise = noise
        return model, scaling

    def _begin_at_data(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        wanted = given(self.num_latents, None)
        standardize = one_scale(self.standardize, self.likelihood)
        survey = self._look_at(table, likelihood, rng, standardize, None if wanted is None else max(int(wanted) - 1, 1))
        # The mean over outputs is a process of its own, and no more columns than outputs can be orthogonal.
        L, scaling = min(wanted or 1 + survey.rank, table.num_outputs), survey.scaling
        factors = survey.factors(max(1, min(L - 1, table.num_inputs)))
        found = with_fixed_noise(survey.functions(factors), self.likelihood, scaling)
        m: Any = self.num_inducing
        projection = self._projection(table, L)
        if m == "auto":
            is_affordable = projection != COUPLED and L * float(table.num_inputs) ** 3 <= _MAX_EXACT_WORK
            m = None if is_affordable else choose_num_points(table, scaling, found)
        logger.info("num_latents=%d, num_inducing=%s, projection: %s", L, m, projection)
        model = self._untrained(table, num_latents=L, num_inducing=m, projection=projection)
        initialise(model, survey, found, factors)
        enough = table.num_observed >= _CELLS_PER_WEIGHT * table.num_outputs * L
        learn = enough if self.learn_basis == "auto" else bool(self.learn_basis)
        model.basis.weight.requires_grad_(learn)
        if not learn and np.isfinite(survey.choice.held_out_error):
            # A basis of so many numbers fits some of the noise: what it leaves of cells that it has not seen is honest.
            noise = max(found.noise, survey.choice.held_out_error)
            model.likelihood.noise = torch.tensor(noise, dtype=torch.float64)
            model.likelihood.requires_grad_(False)
        return model, scaling

    def _train(
        self, model: Any, table: Table, scaling: Scaling, dtype: torch.dtype, device: torch.device, seed: int
    ) -> History:
        assert isinstance(table, Grid)
        if not self._preset.natural or not self._is_direct(model, table):
            history = super()._train(model, table, scaling, dtype, device, seed)
        else:
            history = self._climb(model, table, scaling, device)
        model.remember(_all_rows(model, table, scaling, device))
        return history

    def _is_direct(self, model: OrthogonalMixingModel, table: Grid) -> bool:
        """Whether all rows are worked on at once."""
        if isinstance(model.processes, ExactProcesses):
            return True
        q, width = len(model.basis.raw_scale), model.processes.num_inducing
        numbers = float(table.num_inputs) * q * (q + width)
        if model.basis.weight.requires_grad:
            numbers += float(table.num_observed) * q
        return numbers <= _MAX_DIRECT_NUMBERS

    def _climb(self, model: OrthogonalMixingModel, table: Grid, scaling: Scaling, device: torch.device) -> History:
        if model.basis.weight.requires_grad:
            (batch,) = _batches(table, scaling, table.num_inputs, device)
            rows = lambda: model.rows(batch)  # noqa: E731
        else:
            fixed = Rows.join(_all_rows(model, table, scaling, device))
            rows = lambda: fixed  # noqa: E731
        steps = given(self.epochs, _MAX_STEPS)
        if not isinstance(self.freeze_likelihood, str) and self.freeze_likelihood >= steps:
            model.likelihood.requires_grad_(False)
        history = climb_likelihood(model, rows, table.num_observed, steps, self._journal)
        if history.stop_reason == "epochs" and self.epochs == "auto":
            history.stop_reason = "budget"
        return history

    def _projection(self, table: Table, num_latents: int) -> str:
        if self.projection != "auto":
            return self.projection
        if not self._preset.from_data:
            return "pseudo-inverse"
        assert isinstance(table, Grid)
        # Processes that are matched one by one would all claim the cells of a row that has fewer cells than processes.
        cells = table.count_per_input()
        is_short = np.mean(cells[cells > 0] < num_latents) > _MAX_SHORT_ROWS
        is_light = table.num_inputs * float(num_latents) ** 2 <= _MAX_PATTERN_NUMBERS
        can_couple = self.num_inducing is not None and self.regularization == 1.0
        return COUPLED if is_short and is_light and can_couple else "matched"

    def _work(self, model: OrthogonalMixingModel, cells: float) -> float:
        """Multiplications of a step: the projection of rows, of which half may be gaps, and the sparse processes."""
        p, q = model.basis.weight.shape
        m = 0 if isinstance(model.processes, ExactProcesses) else model.processes.num_inducing
        rows = min(cells, 2.0 * cells / p)
        return 6.0 * rows * q * (m * m + q * q + p * q) + 10.0 * q * float(m) ** 3

    def _resolved(self) -> OILMMConfig:
        config = cast("OILMMConfig", self.model_.config)
        return replace(config, num_inputs=len(self.model_.x), num_patterns=len(self.model_.pattern_gram))


def _as_grid(table: Table) -> Grid:
    """The observations by distinct inputs, since the projection works on rows."""
    cells = len(np.unique(table.X, axis=0)) * table.num_outputs if isinstance(table, Cells) else 0
    if cells > _MAX_GRID_CELLS:
        raise DataError(
            f"The {table.num_observed} cells have inputs of their own, which makes a grid of {cells} cells; OILMM "
            "works on rows that outputs share: use SVLMC or TLVMOGP."
        )
    return table.to_grid()


def _batches(table: Grid, scaling: Scaling, num_rows: int, device: torch.device) -> Iterator[CellBatch]:
    """The table in its order, so many rows at a time, all outputs of each."""
    plan, outputs = GridPlan(table, scaling), np.arange(table.num_outputs)
    for first in range(0, table.num_inputs, num_rows):
        rows = np.arange(first, min(first + num_rows, table.num_inputs))
        yield CellBatch.from_arrays(plan.batch(rows, outputs), torch.float64, device)


@torch.no_grad()
def _all_rows(model: OrthogonalMixingModel, table: Grid, scaling: Scaling, device: torch.device) -> Iterator[Rows]:
    """The rows of a table through the basis as it is, by chunks."""
    q = len(model.basis.raw_scale)
    size = max(1, _CHUNK_NUMBERS // max(table.num_outputs, q * q))
    for batch in _batches(table, scaling, size, device):
        yield model.rows(batch)
