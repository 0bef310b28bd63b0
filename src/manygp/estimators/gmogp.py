"""The G-MOGP estimator."""

import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from manygp.data import Grid, Scaling, Table
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.estimators.config import Config
from manygp.estimators.noise import with_fixed_noise
from manygp.estimators.settings import check_size, resolve_device
from manygp.estimators.standardize import published_scaling
from manygp.estimators.trained import Rng, Start, TrainedEstimator, given, undone_by_interrupts
from manygp.initialise import Survey
from manygp.initialise.gmogp import cosine_similarity, initialise, start_means
from manygp.initialise.likelihood import start_alone
from manygp.initialise.processes import choose_num_points
from manygp.likelihoods import Gaussian, Likelihood, make_likelihood
from manygp.memory import total_memory
from manygp.models.gmogp import Attention, attention_bytes
from manygp.models.indgp import SparseIndependentModel
from manygp.models.stretch import stretch_lengthscales
from manygp.training import Correction, History
from manygp.variational import CholeskyPosterior, InducingGP, KernelBatch, NaturalPosterior

logger = logging.getLogger("manygp")

_REASON = "the bound hardly tells how far from its cells a GP is to be believed; cells held out do"

# Share of the memory of the machine that the matrices of attention may take.
_MEMORY_SHARE = 0.8
# Outputs up to which every output has a kernel of its own, and shared kernels beyond.
_MAX_OWN_KERNELS, _NUM_SHARED_KERNELS = 32, 9
_PAPER_NUM_INDUCING, _PAPER_NOISE_STD, _PAPER_GAIN = 200, 0.1, 1.414


@dataclass(frozen=True, kw_only=True)
class GMOGPConfig(Config):
    """A G-MOGP with nothing left open.

    Settings of `GMOGP` have their names; `num_kernels` is None where every output has a kernel of its own.
    """

    num_inducing: int
    num_kernels: int | None
    kernel: Any
    likelihood: Any

    def build(self, generator: torch.Generator | None = None) -> SparseIndependentModel:
        d, p, m, q, fast = self.num_features, self.num_outputs, self.num_inducing, self.num_kernels, self.natural
        attention = Attention(p, q, sparse=fast)
        kernels = KernelBatch(self.kernel, d, p if q is None else q, log_parameters=fast, mixture=attention)
        posterior = NaturalPosterior(p, m) if fast else CholeskyPosterior(p, m)
        processes = InducingGP(kernels, torch.zeros(p, m, d), posterior, jitter=1e-6 if fast else 1e-8, sparse=fast)
        likelihood = make_likelihood(self.likelihood, p)
        likelihood.sparse_rows = fast
        return SparseIndependentModel(processes, likelihood)


@dataclass(repr=False, eq=False)
class GMOGP(TrainedEstimator):
    """Graphical multi-output GP: a sparse GP for every output, with a prior mixed from those of all by attention.

    What outputs share are kernels and means; functions are their own. See `docs/models/gmogp.md` for the model and its
    cost, which has P x P weights in it.

    Parameters
    ----------
    num_inducing
        Inducing points of each output; "auto" follows from the roughness of the functions.
    num_kernels
        Kernels that the outputs share, each with weights of its own; None gives every output one of its own, as in the
        paper; "auto" is None with preset "paper" and where outputs are few.
    kernel
        "rbf", "matern12", "matern32", "matern52", or a GPyTorch kernel on the inputs.
    likelihood
        Name of a likelihood, or a likelihood.
    epochs, batch_inputs, batch_outputs, learning_rate, dtype, device, random_state, progress
        See `TLVMOGP`.
    standardize
        True scales inputs, and outputs one by one or all alike, whichever predicts held-out cells better ("paper": raw
        inputs, one scale for all outputs). "output" and "global" name a choice; False leaves everything raw.
    preset
        "fast" starts from the similarity of outputs and the evidence, and takes natural steps; "paper" follows the
        published procedure: Adam on everything from random attention.
    freeze_likelihood, max_grad_norm
        See `TLVMOGP`; "auto" never freezes the likelihood.

    Attributes
    ----------
    attention_ : array of shape (p, p)
    history_ : `History`
    model_, scaling_ : the trained module, and the map between its units and the user's

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> model = manygp.GMOGP(epochs=20).fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    num_inducing: int | str = "auto"
    num_kernels: int | str | None = "auto"

    _config_class = GMOGPConfig
    _scalings = (True, False, "output", "global")

    @property
    @torch.no_grad()
    def attention_(self) -> FloatArray:
        """Weights of the outputs (columns) in each other's priors, shape (p, p), with ones on the diagonal."""
        self._check_fitted()
        attention = _attention(self.model_)
        return attention.attend(torch.arange(self.n_outputs_, device=attention.mean.device)).cpu().numpy()

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("num_inducing", self.num_inducing, automatic=("auto",))
        check_size("num_kernels", self.num_kernels, automatic=("auto", None))

    def _begin_at_data(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        survey = self._look_at(table, likelihood, rng, self.standardize)
        scaling = survey.own_scaling
        found = with_fixed_noise(survey.own_functions, self.likelihood, scaling)
        m = given(self.num_inducing, None) or choose_num_points(table, scaling, found, table.num_outputs)
        model, attention = self._attending(survey, scaling, m)
        initialise(model, survey, found)
        # A constant of each output's own is hardly held by the bound, and takes its gaps with it.
        attention.mean.requires_grad_(not likelihood.is_affine)
        level = start_alone(model.likelihood, table, scaling, found.noise, rng)
        if level is not None:
            start_means(attention, level)
        if found is not None and table.count_per_output().max() < 2:
            # A single cell would make the signal of its output its own square, and the noise nothing.
            for part in (*model.processes.kernels.parameters(), *model.likelihood.parameters()):
                part.requires_grad_(part is attention.weight)
        return model, scaling

    def _begin_at_prior(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        scaling = published_scaling(self.standardize, table, likelihood.is_affine)
        m = given(self.num_inducing, min(_PAPER_NUM_INDUCING, table.num_inputs))
        survey = self._look_at(table, likelihood, rng, self.standardize)
        model, attention = self._attending(survey, scaling, m)
        nn.init.normal_(model.processes.Z, generator=generator)
        nn.init.xavier_uniform_(attention.weight, _PAPER_GAIN, generator=generator)
        nn.init.normal_(attention.bias, generator=generator)
        start_alone(model.likelihood, table, scaling, _PAPER_NOISE_STD**2, rng)
        return model, scaling

    def _attending(self, survey: Survey, scaling: Scaling, num_inducing: Any) -> tuple[Any, Attention]:
        """An untrained model that knows how similar outputs are, and its attention."""
        self._check_memory(survey.table.num_outputs)
        kernels = self._count_kernels(survey.table.num_outputs)
        model = self._untrained(survey.table, num_inducing=num_inducing, num_kernels=kernels)
        attention = _attention(model)
        attention.similarity.copy_(cosine_similarity(survey.values, scaling))
        return model, attention

    def _train(
        self, model: Any, table: Table, scaling: Scaling, dtype: torch.dtype, device: torch.device, seed: int
    ) -> History:
        history = super()._train(model, table, scaling, dtype, device, seed)
        is_conjugate = self._preset.natural and isinstance(model.likelihood, Gaussian)
        if is_conjugate and isinstance(table, Grid) and history.stop_reason != "interrupted":
            with undone_by_interrupts(model, history):
                started = time.perf_counter()
                factor = stretch_lengthscales(model, table, scaling, np.random.default_rng(seed))
                seconds = time.perf_counter() - started
                history.corrections = [Correction("lengthscales", _REASON, f"times {factor:.2f}", seconds)]
        return history

    def _check_memory(self, num_outputs: int) -> None:
        """Say what the P x P weights will take, and refuse what cannot fit."""
        needed = attention_bytes(num_outputs, self._preset.natural)
        available = total_memory(resolve_device(self.device))
        logger.info("the attention of %d outputs takes %.1f GB", num_outputs, needed / 1e9)
        if needed > _MEMORY_SHARE * available:
            raise SettingError(
                f"The attention between {num_outputs} outputs takes {needed / 1e9:.1f} GB, and there are "
                f"{available / 1e9:.1f} GB in all: use fewer outputs, or SVLMC or TLVMOGP, whose memory grows with the "
                "outputs and not with their square."
            )

    def _count_kernels(self, num_outputs: int) -> int | None:
        """Number of shared kernels, or None if every output has its own."""
        if self.num_kernels != "auto":
            return None if self.num_kernels is None else int(self.num_kernels)
        own = not self._preset.from_data or num_outputs <= _MAX_OWN_KERNELS
        return None if own else _NUM_SHARED_KERNELS

    def _work(self, model: SparseIndependentModel, cells: float) -> float:
        """Multiplications of a step: covariances with all kernels, their factorisation, and the attention of rows.

        Attention multiplies little, but moves some ten numbers of memory for each weight several times.
        """
        m, p, q = model.processes.num_inducing, len(model.processes.Z), model.processes.kernels.size
        # A batch has at least some cells of every output that it holds.
        outputs = min(p, max(32.0, cells / 16.0))
        return 10.0 * cells * m * (m + q) + 10.0 * outputs * (m**3 + m * m * q + 300.0 * p)


def _attention(model: SparseIndependentModel) -> Attention:
    attention = model.processes.kernels.mixture
    assert isinstance(attention, Attention)
    return attention
