"""The T-LVMOGP estimator."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from manygp.data import Scaling, Table
from manygp.data.coordinates import COORDINATE_SYSTEMS
from manygp.data.table import FloatArray, IntArray
from manygp.embeddings import EMBEDDINGS, Residual
from manygp.errors import SettingError
from manygp.estimators.adapted import AdaptiveEstimator
from manygp.estimators.cell_noise import check_cell_noise, noise_of_cells
from manygp.estimators.corrections import CORRECTIONS, ROW_EFFECTS, correct
from manygp.estimators.neighbors import ARRANGED, NeighborGroups
from manygp.estimators.preset import PUBLISHED
from manygp.estimators.settings import (
    check_choice,
    check_positive,
    check_size,
)
from manygp.estimators.tlvmogp_model import TLVMOGPConfig
from manygp.estimators.tlvmogp_start import begin_at_data, begin_at_prior
from manygp.estimators.trained import given, undone_by_interrupts
from manygp.kernels import is_fused
from manygp.likelihoods import Gaussian, Likelihood, likelihood_name
from manygp.models import TransformedLatentModel
from manygp.training import History, settle

__all__ = ["TLVMOGP"]

logger = logging.getLogger("manygp")

BOUNDS = ("standard", "tight")
NOISES = ("constant", "per-input")
# Cells that "auto" conditions every cell on, and observed cells that it takes: in smaller tables inducing points see
# all detail, and latent vectors are too little known to be taken at their means.
_NEIGHBORS, _LEAST_CELLS = 48, 500
# Steps of such a model at most, unless these are too few or too many epochs.
_NEIGHBOR_STEPS, _NEIGHBOR_EPOCHS = 900, (30, 150)
# Multiplications that an automatic run may take: for each observed cell and dimension of the embedding, at least and at
# most, which is about a quarter of an hour on two cores.
_WORK_PER_DIMENSION, _LEAST_WORK, _MOST_WORK = 2e6, 1.5e12, 1.6e13
# Cells and draws with which "auto" tries whether f is linear in latent vectors; and what may not be so at such a
# quantile of the cells, as a share of the variance: 2% there are 1% of a standard deviation.
_TRIED_CELLS, _TRIED_DRAWS, _TRIED_QUANTILE, _LINEAR = 256, 8, 0.95, 0.02


@dataclass(repr=False, eq=False)
class TLVMOGP(AdaptiveEstimator):
    """Transformed latent variable multi-output GP: many correlated outputs, gaps anywhere, calibrated predictions.

    Every output has a latent vector; inputs and latent vectors are mapped through a network into an embedding space,
    where one sparse GP lives. See `docs/models/tlvmogp.md` for the model and its cost.

    Parameters
    ----------
    latent_dim
        Dimensions of the latent vectors; "auto" chooses them by held-out cells.
    num_inducing
        Inducing points; "auto" follows from the roughness of the functions and the latent dimensions.
    num_neighbors
        Observed cells that every cell is conditioned on beside the inducing points, so that no detail is lost; 0 for
        inducing points alone, as in the paper. "auto" is 48 for Gaussian noise and at least 500 observed cells,
        with preset "fast" or "quick" and the standard bound, without `output_coordinates`.
    num_blocks, spectral_bound
        Blocks of the residual network, and the upper bound of their spectral norms (None: no bound). "auto" is 0.1, or
        1 where there are many inputs for every weight of the network.
    trend
        Whether functions are linear in the inputs beside the GP, with slopes that are linear in the latent vectors.
        "auto" does so where there are at least four inputs and that explains a fifth of the variance: slopes along many
        inputs would take up most of the inducing points.
    corrections
        What may be changed once training is over, recorded in `history_.corrections`: a tuple of names, () for nothing.
        "noise" puts the noise right by cells left out; "row_effects" looks for what outputs do together at single
        inputs of the table and at no other, so that outputs observed at an input tell about the others there, if cells
        held out show that there is such. "auto" is both with preset "fast". With "paper", and with neighbours, whose
        bound has both, it is nothing.
    embedding
        "residual", "identity", "mlp", or a `torch.nn.Module` on rows of inputs and latents together.
    kernel
        "rbf", "matern12", "matern32", "matern52", with seasons in units of an input or of dates, such as
        "rbf * periodic(24)" or "rbf + periodic('year')", see `docs/seasons.md`; or a GPyTorch kernel on the embedding
        space.
    likelihood
        "gaussian" (with a noise of each output's own, see "pooled-gaussian", where the data show one), "student-t",
        "bernoulli", "poisson", "negative-binomial", "zip", "zinb", "auto" (by a look at the values), a
        likelihood of `manygp.likelihoods` or a one-dimensional one of GPyTorch; see `docs/likelihoods.md`.
    noise
        "constant" gives an output the same Gaussian noise at all inputs; "per-input" multiplies it by a factor of every
        input of the table, which is learnt and drawn to 1, so that months, days or passes of an instrument may differ.
        See `y_std` of `fit` for noise that is known.
    bound
        "standard", or "tight": closer to the evidence by a closed form for Gaussian noise, at about twice the cost of a
        step, and by one more learned number for other likelihoods.
    latent_posterior
        "full", "diagonal" or "point".
    latent_prior_mean, latent_prior_variance
        Prior of the latent vectors. Means: None for zero, a table with a row for each output, such as coordinates in
        any units, an array or a data frame by output name, or "pca" for principal components of the outputs; they are
        standardised, and one variance is for the standardised ones.
    coordinate_system
        What `output_coordinates` in `fit` are: "flat", or "sphere" if the first two are latitude and longitude in
        degrees; "auto" takes columns of a data frame called lat and lon for these.
    epochs
        Passes over the data; "auto" runs until the bound stops rising.
    batch_inputs, batch_outputs
        Inputs and outputs in a batch; "auto" aims at a few thousand observed cells.
    learning_rate
        Adam's step size; "auto" takes that of the preset.
    num_samples
        Draws of the latent vectors in the predictive mixture. "auto" takes 20 where f bends in the latent vectors, and
        none where it is linear in them but for a percent of a standard deviation: there, one Gaussian with the slopes
        of f is the same distribution, ten times faster. Predictions from neighbours take none.
    standardize
        True lets the preset choose: "fast" standardises inputs, and outputs one by one, all alike or from completed
        columns, whichever predicts held-out cells best; "paper" leaves inputs raw and gives all outputs one scale.
        "output", "global" and "completed" name a choice; False leaves everything raw. Counts and labels are never
        scaled.
    preset
        "fast" starts from the data and takes natural steps; "quick" is that with ten epochs; "paper" follows the
        published procedure: Adam on everything from the prior.
    dtype
        "float64" or "float32" for the work over batches; M x M algebra is always float64.
    device
        "auto" (a GPU if there is one), "cpu", "cuda" or any torch device.
    random_state
        Seed.
    progress
        True, False, or "auto" for a progress bar on terminals and in notebooks.
    freeze_likelihood
        Epochs for which the noise stays at its start; `math.inf` never learns it. "auto" is none for "fast" and half
        of all for "paper", whose start a free noise would explain away. For a noise of your own, see
        `likelihoods.Gaussian`.
    max_grad_norm
        Largest norm of the gradient of the bound per cell; None does not clip.

    Attributes
    ----------
    latent_mean_ : array of shape (p, latent_dim)
    latent_covariance_ : array of shape (p, latent_dim, latent_dim)
    inducing_points_ : array of shape (num_inducing, embedding dimensions)
    likelihood_ : name of the likelihood
    history_ : `History`
    model_, scaling_ : the trained module, and the map between its units and the user's

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> Y[10:20, 2] = np.nan
    >>> model = manygp.TLVMOGP(epochs=20).fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    latent_dim: int | str = "auto"
    num_inducing: int | str = "auto"
    num_neighbors: int | str = "auto"
    num_blocks: int = 3
    spectral_bound: float | str | None = "auto"
    trend: bool | str = "auto"
    corrections: str | tuple[str, ...] = "auto"
    embedding: str | nn.Module = "residual"
    noise: str = "constant"
    bound: str = "standard"
    coordinate_system: str = "auto"

    _begin_at_data = begin_at_data
    _begin_at_prior = begin_at_prior
    _automatic_likelihoods = ("auto",)
    _knows_exposure = True
    _knows_y_std = True
    _reads_batches = True
    _config_class = TLVMOGPConfig
    # A free noise would explain the published start away.
    _published = replace(PUBLISHED, frozen_share=0.5)

    # -- fitted attributes ---------------------------------------------------------------------------------------

    @property
    def likelihood_(self) -> str:
        """Name of the likelihood, or of its class if it was given as an object."""
        self._check_fitted()
        return likelihood_name(self.model_.likelihood)

    @property
    def inducing_points_(self) -> FloatArray:
        """Inducing points in the embedding space, shape (m, e)."""
        self._check_fitted()
        return self.model_.gp.Z.detach().cpu().numpy()

    def _lengthscales(self) -> FloatArray | None:
        model, d = self.model_, self.n_features_in_
        if not is_fused(model.gp.kernel) or model.gp.Z.shape[1] != len(model.units):
            return None
        # The embedding stays near the identity, whose first dimensions are the inputs.
        lengthscale = model.units * model.gp.kernel.base_kernel.lengthscale[0]
        return lengthscale[:d].detach().cpu().numpy() * self.scaling_.x_scale[:d]

    def lipschitz_interval(self) -> tuple[float, float]:
        """Certified bounds on how much the residual network stretches distances, see `embeddings.Residual`."""
        self._check_fitted()
        if not isinstance(self.model_.embedding, Residual):
            raise SettingError(f"embedding={self.embedding!r} has no certified interval: only 'residual' has one.")
        return self.model_.embedding.lipschitz_interval()

    # -- fitting -------------------------------------------------------------------------------------------------

    def _places(self, table: Table) -> tuple[int, str]:
        return table.num_observed, "observed cells"

    def _check_likelihood(self, likelihood: Likelihood, table: Table) -> None:
        super()._check_likelihood(likelihood, table)
        check_cell_noise(self.noise, table, likelihood)

    def _of_cells(
        self,
        exposure: Callable[[IntArray], Tensor | None],
        locate: Callable[[IntArray], tuple[Tensor, Tensor]],
    ) -> Callable[[IntArray], Tensor | None]:
        return exposure if self.model_.cell_noise is None else noise_of_cells(self.model_, locate)

    def _count_neighbors(self, table: Table, likelihood: Likelihood) -> int:
        """Cells that every cell is conditioned on beside the inducing points."""
        is_known = isinstance(likelihood, Gaussian) and self._preset.natural and table.coordinates is None
        # The tight bound makes up for what neighbours do not leave open.
        is_known = is_known and self.bound == "standard"
        wanted = self.num_neighbors
        if isinstance(wanted, str):
            wanted = _NEIGHBORS if table.num_observed >= _LEAST_CELLS and not table.is_part else 0
        if wanted and table.is_part:
            raise SettingError(
                f"num_neighbors={wanted} needs all cells in memory, and this table is stored elsewhere: read the "
                "values first, as in y[:], or use num_neighbors=0."
            )
        return wanted if is_known else 0

    def _predictor(self, model: Any) -> Any:
        if self.num_samples == "auto" and model.observed is None and self._is_linear(model):
            return model.linear_predictor()
        return super()._predictor(model)

    def _is_linear(self, model: Any) -> bool:
        """Whether f is so close to linear in latent vectors, at some cells of the fit, that draws tell nothing."""
        if self._inputs_ is None:
            return False
        rng, device = np.random.default_rng(self._seed), model.units.device
        rows = rng.integers(len(self._inputs_), size=_TRIED_CELLS)
        x = torch.as_tensor(self.scaling_.scale_x(self._inputs_[rows]), device=device)
        outputs = torch.as_tensor(rng.integers(self.n_outputs_, size=_TRIED_CELLS), device=device)
        share = model.nonlinearity(x, outputs, _TRIED_DRAWS, self._seed)
        return float(share.quantile(_TRIED_QUANTILE)) < _LINEAR

    def _train(
        self, model: Any, table: Table, scaling: Scaling, dtype: torch.dtype, device: torch.device, seed: int
    ) -> History:
        if model.num_neighbors:
            return self._train_with_neighbors(model, table, scaling, dtype, device, seed)
        history = super()._train(model, table, scaling, dtype, device, seed)
        return self._corrected(model, table, scaling, seed, history)

    def _train_with_neighbors(
        self, model: Any, table: Table, scaling: Scaling, dtype: torch.dtype, device: torch.device, seed: int
    ) -> History:
        rng = np.random.default_rng(seed)
        groups = NeighborGroups(model, table, scaling, model.num_neighbors, device, rng, self._exchange)
        # Bounds of other groups of cells are other estimates.
        schedule = replace(self._schedule(groups.plan, model), least_window=ARRANGED)
        history = self._run(model, groups.plan, schedule, dtype, device, seed, groups.before_epoch)
        # q(u) of all cells, none of them taken for lost
        groups.arrange()
        settle(model, groups.plan, dtype=dtype, device=device, seed=seed, exchange=self._exchange)
        model.observed = groups.observed()
        return history

    def _corrected(self, model: Any, table: Table, scaling: Scaling, seed: int, history: History) -> History:
        """What follows training without neighbours."""
        if history.stop_reason != "interrupted" and self._corrects_likelihood(table, len(history)):
            with undone_by_interrupts(model, history):
                part = table.in_memory(np.random.default_rng(seed))
                # Effects of single inputs are those of all inputs, or none.
                names = [name for name in self._corrections() if name != ROW_EFFECTS or not part.is_part]
                history.corrections = correct(model, part, scaling, seed, names)
        for made in history.corrections:
            logger.info("%s after training: %s", made.name, made.effect)
        return history

    def _corrections(self) -> tuple[str, ...]:
        """Names of the corrections that are wanted."""
        chosen: Any = given(self.corrections, tuple(CORRECTIONS))
        return chosen if self._preset.from_data else ()

    def _corrects_likelihood(self, table: Table, epochs: float) -> bool:
        """Whether the likelihood may change after so many epochs: not if it was frozen in all of them."""
        is_frozen = not isinstance(self.freeze_likelihood, str) and self.freeze_likelihood >= epochs
        return self._preset.from_data and not is_frozen and table.coordinates is None

    def _looks_for_effects(self, table: Table) -> bool:
        """Whether effects of single inputs are looked for once training is over."""
        epochs = math.inf if isinstance(self.epochs, str) else self.epochs
        is_wanted = ROW_EFFECTS in self._corrections() and not table.is_part
        return is_wanted and self._corrects_likelihood(table, epochs)

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("latent_dim", self.latent_dim, automatic=("auto",))
        check_size("num_inducing", self.num_inducing, automatic=("auto",))
        check_size("num_neighbors", self.num_neighbors, minimum=0, automatic=("auto",))
        check_size("num_blocks", self.num_blocks)
        check_positive("spectral_bound", self.spectral_bound, optional=True, automatic=("auto",))
        check_choice("trend", self.trend, (True, False, "auto"))
        if isinstance(self.corrections, tuple):
            for name in self.corrections:
                check_choice("corrections", name, CORRECTIONS)
        else:
            check_choice("corrections", self.corrections, ("auto", (), tuple(CORRECTIONS)), " or a tuple of names")
        if not isinstance(self.embedding, nn.Module):
            check_choice("embedding", self.embedding, EMBEDDINGS, " or a torch.nn.Module")
        check_choice("noise", self.noise, NOISES)
        check_choice("bound", self.bound, BOUNDS)
        check_choice("coordinate_system", self.coordinate_system, COORDINATE_SYSTEMS)

    def _work(self, model: TransformedLatentModel, cells: float) -> float:
        m = len(model.gp.Z)
        # Two products with the batch, and half a dozen among inducing points.
        return 2.0 * cells * m**2 + 6.0 * m**3

    def _most_epochs(self, model: TransformedLatentModel, steps: int) -> int:
        if not model.num_neighbors:
            return super()._most_epochs(model, steps)
        # What neighbours see is learnt soon; more steps only make a model surer of itself.
        return int(np.clip(_NEIGHBOR_STEPS // steps, *_NEIGHBOR_EPOCHS))

    def _budget(self, model: TransformedLatentModel, cells: int) -> float:
        # The more dimensions, the more there is to learn about the embedding.
        work = _WORK_PER_DIMENSION * len(model.units) * cells
        return min(max(work, _LEAST_WORK), _MOST_WORK)

    def _resolved(self) -> TLVMOGPConfig:
        return cast("TLVMOGPConfig", self.model_.config).after(self.model_)
