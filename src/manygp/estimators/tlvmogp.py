"""The T-LVMOGP estimator."""

import logging
import math
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import nn

from manygp.data import Scaling, Table
from manygp.data.coordinates import COORDINATE_SYSTEMS, CoordinateMap
from manygp.data.table import FloatArray
from manygp.embeddings import EMBEDDINGS, Residual, embedding_dim, make_embedding
from manygp.errors import SettingError
from manygp.estimators.adapted import AdaptiveEstimator
from manygp.estimators.noise import typical_noise
from manygp.estimators.settings import (
    check_choice,
    check_inducing,
    check_kernel,
    check_likelihood,
    check_positive,
    check_size,
)
from manygp.estimators.standardize import check_scaled, published_scaling
from manygp.estimators.trained import undone_by_interrupts
from manygp.initialise import Survey
from manygp.initialise.priors import PriorMeans, prior_means
from manygp.initialise.pseudo_values import check_support
from manygp.initialise.tlvmogp import choose_sizes, choose_spectral_bound, initialise, initialise_at_prior
from manygp.kernels import make_kernel
from manygp.likelihoods import Gaussian, Likelihood, choose_likelihood, likelihood_name, make_likelihood
from manygp.models import TransformedLatentModel
from manygp.models.calibration import calibrate_noise
from manygp.models.coordinates import place_outputs, with_coordinates
from manygp.models.row_effects import find_row_effects
from manygp.models.site_effects import find_site_effects
from manygp.training import History
from manygp.variational import LATENT_POSTERIORS, CholeskyPosterior, InducingGP, Latents, NaturalPosterior, RowEffects

__all__ = ["TLVMOGP"]

logger = logging.getLogger("manygp")

BOUNDS = ("standard", "tight")
_PAPER = {"latent_dim": 3, "num_inducing": 200}
# The bound of spectral norms with preset "paper".
_STIFF = 0.1
# Values that a likelihood is chosen by.
_SAMPLE_CELLS = 100_000
_JITTER, _PAPER_JITTER, _SITE_JITTER = 1e-9, 1e-8, 1e-6
# Multiplications that an automatic run may take: for each observed cell and dimension of the embedding, at least and at
# most, which is about a quarter of an hour on two cores.
_WORK_PER_DIMENSION, _LEAST_WORK, _MOST_WORK = 2e6, 1.5e12, 1.6e13


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
    num_blocks, spectral_bound
        Blocks of the residual network, and the upper bound of their spectral norms (None: no bound). "auto" is 0.1, or
        1 where there are many inputs for every weight of the network.
    trend
        Whether functions are linear in the inputs beside the GP, with slopes that are linear in the latent vectors.
        "auto" does so where there are at least four inputs and that explains a fifth of the variance: slopes along many
        inputs would take up most of the inducing points.
    row_effects
        Whether to look, after training, for what outputs do together at single inputs of the table and at no other: if
        cells that were held out show that there is such, the outputs observed at an input tell about the others there.
        Preset "fast" only.
    embedding
        "residual", "identity", "mlp", or a `torch.nn.Module` on rows of inputs and latents together.
    kernel
        "rbf", "matern12", "matern32", "matern52", or a GPyTorch kernel on the embedding space.
    likelihood
        "gaussian" (with a noise of each output's own, see "pooled-gaussian", where the data show one), "student-t",
        "bernoulli", "poisson", "negative-binomial", "zip", "zinb", "auto" (by a look at the values), a
        likelihood of `manygp.likelihoods` or a one-dimensional one of GPyTorch; see `docs/likelihoods.md`.
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
        Draws of the latent vectors in the predictive mixture.
    standardize
        True lets the preset choose: "fast" standardises inputs, and outputs one by one, all alike or from completed
        columns, whichever predicts held-out cells best; "paper" leaves inputs raw and gives all outputs one scale.
        "output", "global" and "completed" name a choice; False leaves everything raw. Counts and labels are never
        scaled.
    preset
        "fast" starts from the data and takes natural steps; "paper" follows the published procedure: Adam on
        everything from the prior.
    dtype
        "float64" or "float32" for the work over batches; M x M algebra is always float64.
    device
        "auto" (a GPU if there is one), "cpu", "cuda" or any torch device.
    random_state
        Seed.
    progress
        True, False, or "auto" for a progress bar on terminals.
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

    def __init__(
        self,
        latent_dim: int | str = "auto",
        num_inducing: int | str = "auto",
        num_blocks: int = 3,
        spectral_bound: float | str | None = "auto",
        trend: bool | str = "auto",
        row_effects: bool = True,
        embedding: str | nn.Module = "residual",
        kernel: str | gpytorch.kernels.Kernel = "rbf",
        likelihood: str | Likelihood | gpytorch.likelihoods.Likelihood = "gaussian",
        bound: str = "standard",
        latent_posterior: str = "full",
        latent_prior_mean: Any = None,
        latent_prior_variance: float = 1.0,
        coordinate_system: str = "auto",
        epochs: int | str = "auto",
        batch_inputs: int | str | None = "auto",
        batch_outputs: int | str | None = "auto",
        learning_rate: float | str = "auto",
        num_samples: int = 20,
        standardize: bool | str = True,
        preset: str = "fast",
        dtype: str = "float64",
        device: str = "auto",
        random_state: Any = 0,
        progress: bool | str = "auto",
        freeze_likelihood: float | str = "auto",
        max_grad_norm: float | None = None,
    ):
        self.latent_dim = latent_dim
        self.num_inducing = num_inducing
        self.num_blocks = num_blocks
        self.spectral_bound = spectral_bound
        self.trend = trend
        self.row_effects = row_effects
        self.embedding = embedding
        self.kernel = kernel
        self.likelihood = likelihood
        self.bound = bound
        self.latent_posterior = latent_posterior
        self.latent_prior_mean = latent_prior_mean
        self.latent_prior_variance = latent_prior_variance
        self.coordinate_system = coordinate_system
        self.epochs = epochs
        self.batch_inputs = batch_inputs
        self.batch_outputs = batch_outputs
        self.learning_rate = learning_rate
        self.num_samples = num_samples
        self.standardize = standardize
        self.preset = preset
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.progress = progress
        self.freeze_likelihood = freeze_likelihood
        self.max_grad_norm = max_grad_norm

    model_: TransformedLatentModel
    _knows_exposure = True
    # A free noise would explain the published start away.
    _paper_frozen_share = 0.5

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

    def lipschitz_interval(self) -> tuple[float, float]:
        """Certified bounds on how much the residual network stretches distances, see `embeddings.Residual`."""
        self._check_fitted()
        if not isinstance(self.model_.embedding, Residual):
            raise SettingError(f"embedding={self.embedding!r} has no certified interval: only 'residual' has one.")
        return self.model_.embedding.lipschitz_interval()

    # -- fitting -------------------------------------------------------------------------------------------------

    def _begin(self, table: Table, rng: np.random.Generator) -> tuple[TransformedLatentModel, Scaling]:
        check_inducing(self.num_inducing, table.num_observed, places="observed cells")
        likelihood = self._likelihood_for(table, rng)
        check_support(likelihood, table)
        if table.exposure is not None:
            self._check_exposure(likelihood)
        check_scaled(self.standardize, likelihood)
        prior = prior_means(self.latent_prior_mean, table, self._prior_dim(), likelihood, rng)
        if self.preset == "paper":
            return self._begin_at_prior(table, likelihood, prior)
        is_placed = table.coordinates is not None
        survey = Survey(
            table,
            likelihood,
            rng,
            # An output that is known by its place alone has no centre and scale of its own.
            "global" if self.standardize is True and self._knows_places(table) else self.standardize,
            max_rank=None if isinstance(self.latent_dim, str) else self.latent_dim,
            looks_for_trend=self.trend is not False
            and not (self.standardize is False or is_placed or prior is not None),
        )
        sizes = choose_sizes(
            survey,
            self.latent_dim,
            self.num_inducing,
            None if prior is None else prior.mean.shape[1],
            self._looks_for_effects(table),
            typical_noise(self.likelihood, survey.scaling),
        )
        if type(likelihood) is Gaussian and isinstance(self.likelihood, str):
            likelihood = sizes.likelihood(likelihood)
        logger.info(
            "latent_dim=%d, num_inducing=%d, standardisation of outputs: %s, likelihood: %s, trend: %s",
            *(sizes.latent_dim, sizes.num_inducing, survey.choice.kind, likelihood_name(likelihood)),
            survey.slopes is not None,
        )
        has_trend = self.trend is True or survey.slopes is not None
        model = self._untrained(table, likelihood, sizes.latent_dim, sizes.num_inducing, prior, has_trend)
        initialise(model, survey, sizes)
        return model, survey.scaling

    def _prior_dim(self) -> int | str:
        """Dimensions of principal components that prior means may be."""
        is_open = self.latent_dim == "auto" and isinstance(self.latent_prior_mean, str)
        return _PAPER["latent_dim"] if is_open and self.preset == "paper" else self.latent_dim

    def _begin_at_prior(
        self, table: Table, likelihood: Likelihood, prior: PriorMeans | None
    ) -> tuple[TransformedLatentModel, Scaling]:
        """A model and scaling after the published procedure."""
        default = _PAPER["latent_dim"] if prior is None else prior.mean.shape[1]
        latent_dim = default if self.latent_dim == "auto" else self.latent_dim
        automatic = min(_PAPER["num_inducing"], table.num_observed)
        num_inducing = automatic if self.num_inducing == "auto" else self.num_inducing
        model = self._untrained(table, likelihood, latent_dim, num_inducing, prior, self.trend is True)
        initialise_at_prior(model)
        return model, published_scaling(self.standardize, table, likelihood.is_affine)

    def _train(
        self, model: Any, table: Table, scaling: Scaling, dtype: torch.dtype, device: torch.device, seed: int
    ) -> History:
        history = super()._train(model, table, scaling, dtype, device, seed)
        if history.stop_reason == "interrupted" or not self._corrects_likelihood(table, len(history)):
            return history
        rng, is_gaussian = np.random.default_rng(seed), isinstance(model.likelihood, Gaussian)
        with undone_by_interrupts(model, history):
            if is_gaussian:
                factor = calibrate_noise(model, table, scaling, rng)
                logger.info("noise variance times %.2f, by cells left out one at a time", factor)
            if self._looks_for_effects(table):
                find = find_row_effects if is_gaussian else find_site_effects
                model.row_effects = find(model, table, scaling, rng)
        if model.row_effects is not None:
            logger.info("%d effects of single inputs on all outputs", model.row_effects.mean.shape[1])
        return history

    def _corrects_likelihood(self, table: Table, epochs: float) -> bool:
        """Whether the likelihood may change after so many epochs: not if it was frozen in all of them."""
        is_frozen = not isinstance(self.freeze_likelihood, str) and self.freeze_likelihood >= epochs
        return self.preset != "paper" and not is_frozen and table.coordinates is None

    def _looks_for_effects(self, table: Table) -> bool:
        """Whether effects of single inputs are looked for once training is over."""
        epochs = math.inf if isinstance(self.epochs, str) else self.epochs
        return self.row_effects and self._corrects_likelihood(table, epochs)

    def _likelihood_for(self, table: Table, rng: np.random.Generator) -> Likelihood:
        """The likelihood, chosen by the values if that is left to them."""
        if self.likelihood != "auto":
            return make_likelihood(self.likelihood, table.num_outputs)
        _, _, y = table.sample(_SAMPLE_CELLS, rng)
        chosen = choose_likelihood(y)
        logger.info(
            "likelihood='auto' chose %r: of %d values %.0f%% are zero and %.0f%% whole; mean %.3g, variance %.3g",
            *(chosen, len(y), 100 * np.mean(y == 0), 100 * np.mean(y == np.floor(y)), y.mean(), y.var()),
        )
        return make_likelihood(chosen, table.num_outputs)

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("latent_dim", self.latent_dim, automatic=("auto",))
        check_size("num_inducing", self.num_inducing, automatic=("auto",))
        check_size("num_blocks", self.num_blocks)
        check_positive("spectral_bound", self.spectral_bound, optional=True, automatic=("auto",))
        check_choice("trend", self.trend, (True, False, "auto"))
        check_choice("row_effects", self.row_effects, (True, False))
        if not isinstance(self.embedding, nn.Module):
            check_choice("embedding", self.embedding, EMBEDDINGS, " or a torch.nn.Module")
        check_kernel("kernel", self.kernel)
        check_likelihood(self.likelihood, automatic=("auto",))
        check_choice("bound", self.bound, BOUNDS)
        check_choice("latent_posterior", self.latent_posterior, LATENT_POSTERIORS)
        check_positive("latent_prior_variance", self.latent_prior_variance)
        check_choice("coordinate_system", self.coordinate_system, COORDINATE_SYSTEMS)
        check_choice("standardize", self.standardize, (True, False, "output", "global", "completed"))

    def _untrained(
        self,
        table: Table,
        likelihood: Likelihood,
        latent_dim: Any,
        num_inducing: Any,
        prior: PriorMeans | None,
        has_trend: bool,
    ) -> TransformedLatentModel:
        sizes = {
            "num_features": table.num_features,
            "num_outputs": table.num_outputs,
            "latent_dim": int(latent_dim),
            "num_inducing": int(num_inducing),
            "spectral_bound": self._bend(table, int(latent_dim)),
            "prior_mean": prior is not None,
            "trend": has_trend,
            "coordinates": None if table.coordinates is None else table.coordinates.numbers(),
            **self._chosen_likelihood(likelihood),
        }
        model = self._restore(sizes)
        if prior is not None:
            prior.set(model.latents)
        if table.coordinates is not None:
            place_outputs(model, torch.as_tensor(table.coordinates.features))
        return model

    def _bend(self, table: Table, latent_dim: int) -> float:
        """The spectral bound that "auto" stands for."""
        return _STIFF if self.preset == "paper" else choose_spectral_bound(table, latent_dim, self.num_blocks)

    def _work(self, model: TransformedLatentModel, cells: float) -> float:
        m = len(model.gp.Z)
        # Two products with the batch, and half a dozen among inducing points.
        return 2.0 * cells * m**2 + 6.0 * m**3

    def _budget(self, model: TransformedLatentModel, cells: int) -> float:
        # The more dimensions, the more there is to learn about the embedding.
        work = _WORK_PER_DIMENSION * len(model.units) * cells
        return min(max(work, _LEAST_WORK), _MOST_WORK)

    def _restore(self, sizes: dict[str, Any]) -> TransformedLatentModel:
        paper, h, m = self.preset == "paper", sizes["latent_dim"], sizes["num_inducing"]
        dim = sizes["num_features"] + h
        bound: Any = sizes["spectral_bound"] if self.spectral_bound == "auto" else self.spectral_bound
        embedding = make_embedding(self.embedding, dim, self.num_blocks, bound)
        e = embedding_dim(embedding, dim)
        posterior = CholeskyPosterior(m) if paper else NaturalPosterior(m)
        likelihood = make_likelihood(sizes.get("likelihood", self.likelihood), sizes["num_outputs"])
        kernel = make_kernel(self.kernel, e, log_parameters=not paper)
        # Cell by cell, variances are differences, which lose the digits that the jitter does not keep.
        jitter = _SITE_JITTER if not isinstance(likelihood, Gaussian) else _PAPER_JITTER if paper else _JITTER
        gp = InducingGP(kernel, torch.zeros(m, e), posterior, sizes.get("jitter", jitter), self.bound)
        prior_mean = torch.zeros(sizes["num_outputs"], h) if sizes["prior_mean"] else None
        latents = Latents(
            sizes["num_outputs"],
            h,
            self.latent_posterior,
            prior_mean,
            self.latent_prior_variance,
            sparse=not paper,
            relative=not paper,
            shared_draws=paper,
        )
        share, has_levels = float(sizes.get("linear_share", 0.0)), not (paper or likelihood.is_affine)
        model = TransformedLatentModel(
            *(embedding, gp, latents, likelihood, torch.ones(dim), has_levels, not paper, share),
            has_trend=sizes.get("trend", False),
        )
        if sizes.get("row_effects") is not None:
            rows, effects = sizes["row_effects"]
            model.row_effects = RowEffects(rows, sizes["num_outputs"], sizes["num_features"], effects)
        if sizes["coordinates"] is not None:
            with_coordinates(model, CoordinateMap.from_numbers(sizes["coordinates"]))
        return model

    def _sizes(self) -> dict[str, Any]:
        latents = self.model_.latents
        return {
            "num_features": self.n_features_in_,
            "num_outputs": self.n_outputs_,
            "latent_dim": latents.dim,
            "num_inducing": len(self.model_.gp.Z),
            "spectral_bound": getattr(self.model_.embedding, "spectral_bound", None),
            "prior_mean": latents.prior_mean is not None,
            "trend": self.model_.slopes is not None,
            "row_effects": None if self.model_.row_effects is None else list(self.model_.row_effects.mean.shape),
            "coordinates": None if self.model_.coordinates is None else self.model_.coordinates.map.numbers(),
            "linear_share": self.model_.linear_share,
            "jitter": self.model_.gp.jitter,
            **self._chosen_likelihood(self.model_.likelihood),
        }

    def _chosen_likelihood(self, likelihood: Likelihood) -> dict[str, str]:
        """The name of the likelihood where it is not the one that was set."""
        name = likelihood_name(likelihood)
        return {"likelihood": name} if isinstance(self.likelihood, str) and name != self.likelihood else {}
