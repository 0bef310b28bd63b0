"""What an estimator offers beyond single cells: functions, completed tables, posteriors, relations of outputs."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from manygp.data.names import find_outputs
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError
from manygp.estimators.drawn import DrawnFunctions
from manygp.estimators.filling import fill_table
from manygp.functions import Joint
from manygp.likelihoods import Gaussian
from manygp.memory import check_memory
from manygp.summaries.together import check_draws

# Inputs over which relations are averaged where none are given, and outputs whose variances are found together.
_NUM_INPUTS, _NUM_PATH, _NUM_OUTPUTS = 8, 32, 256


class TogetherMixin:
    """Functions, multiple imputations, posteriors, correlations and shares of variance; a part of `Estimator`."""

    output_names_: tuple[Hashable, ...]
    model_: Any
    scaling_: Any
    _inputs_: FloatArray | None
    _seed: int
    _check_fitted: Any
    _check_inputs: Any
    _model_for: Any
    _num_draws: Any
    predict_dist: Any

    def sample_functions(self, n: int = 1, random_state: int = 0) -> DrawnFunctions:
        """`n` functions drawn from the posterior, without the noise of observations.

        Each is a callable `(X, outputs) -> values` of shape (n, p) that can be asked again and again, at any inputs: it
        has the same value at a cell whatever else is asked. They can be saved with their model.

        Parameters
        ----------
        n
            Number of functions.
        random_state
            Seed; `sample` of predictions without the noise of observations gives the same functions for the same seed.
        """
        self._check_fitted()
        check_draws(n, random_state)
        return DrawnFunctions(self, int(n), int(random_state))

    def impute(
        self,
        X: Any,
        y: Any = None,
        *,
        n: int = 20,
        random_state: int = 0,
        inputs: Sequence[Hashable] | None = None,
        exposure: Any = None,
    ) -> list[Any]:
        """`n` completed tables: gaps are filled by joint draws, what was observed stays as it is.

        What is computed from each of the tables, averaged over them, with the spread between them added to the usual
        errors (Rubin's rules), accounts for what is missing.

        Parameters
        ----------
        X, y
            A table as `fill` takes it: a frame, a DataArray, or inputs and values.
        n
            Number of completed tables.
        random_state
            Seed.
        inputs, exposure
            As in `fill`.

        Returns
        -------
        list
            Tables in the container that came in.
        """
        self._check_fitted()
        check_draws(n, random_state)
        filled = fill_table(self, X, y, (), 0.9, inputs, exposure, num_draws=int(n), random_state=int(random_state))
        return list(filled.values())

    def posterior(self, X: Any, outputs: Any = None, *, observation_noise: bool = False) -> Any:
        """A posterior of GPyTorch and BoTorch at inputs X, differentiable in X; needs the extra `botorch`.

        Parameters
        ----------
        X
            A torch tensor of inputs, shape (..., q, d), in the user's units; it may require gradients.
        outputs
            Names or positions of the outputs; all by default.
        observation_noise
            Whether to add the noise of observations, which must be Gaussian.

        Returns
        -------
        GPyTorchPosterior
            With `mean`, `variance`, `rsample` and `event_shape` (..., q, p). A mixture over draws of latent vectors is
            replaced by the Gaussian with its moments.
        """
        from manygp.estimators.posterior import posterior

        self._check_fitted()
        return posterior(self, X, outputs, observation_noise)

    def to_botorch(self, outputs: Any = None) -> Any:
        """A BoTorch model of some outputs, for its acquisition functions and optimisers; needs the extra `botorch`."""
        from manygp.estimators.posterior import botorch_model

        self._check_fitted()
        return botorch_model(self, outputs)

    def correlation(
        self, outputs_a: Any = None, outputs_b: Any = None, X: Any = None, *, posterior: bool = False
    ) -> pd.DataFrame:
        """Correlations of the functions of some outputs with those of others at the same input.

        Parameters
        ----------
        outputs_a, outputs_b
            Names or positions of outputs; all by default, and `outputs_b` the same as `outputs_a`.
        X
            Inputs over which covariances are averaged; a few of the fit by default.
        posterior
            Whether to ask for what is left unknown after the fit: large where errors of predictions go together.
            Otherwise for what the model has learnt about how outputs vary together.

        Returns
        -------
        DataFrame
            A row for each of `outputs_a` and a column for each of `outputs_b`.
        """
        x = self._some_inputs(X, _NUM_INPUTS)
        a = find_outputs(self.output_names_, outputs_a)
        b = a if outputs_b is None else find_outputs(self.output_names_, outputs_b)
        check_memory("correlation", 40.0 * len(a) * len(b))
        covariance, left, right = np.zeros((len(a), len(b))), np.zeros(len(a)), np.zeros(len(b))
        joint = self._joint()
        for row in x:
            if posterior:
                cells = np.unique(np.concatenate([a, b]), return_inverse=True)
                C = self._posterior_covariance(joint, row, cells[0])
                i, j = cells[1][: len(a)], cells[1][len(a) :]
                covariance += C[np.ix_(i, j)]
                left, right = left + C.diagonal()[i], right + C.diagonal()[j]
            else:
                covariance += self._prior(joint, row, a, b)
                left, right = left + self._prior_variance(joint, row, a), right + self._prior_variance(joint, row, b)
        scale = np.sqrt(np.maximum(left[:, None] * right, 1e-300))
        return pd.DataFrame(np.clip(covariance / scale, -1.0, 1.0), self._index(a), self._index(b))

    def nearest_outputs(self, output: Hashable, n: int = 10, X: Any = None) -> pd.Series:
        """The outputs that vary most alike, or most oppositely, with one output: their correlations, largest first.

        Parameters
        ----------
        output
            Name or position.
        n
            How many.
        X
            As in `correlation`.
        """
        # A tuple would be read as several outputs.
        row = self.correlation([output], range(len(self.output_names_)), X).iloc[0]
        (own,) = find_outputs(self.output_names_, [output])
        others = np.delete(np.arange(len(row)), own)
        order = others[np.argsort(-np.abs(row.to_numpy()[others]), kind="stable")][:n]
        return pd.Series(row.to_numpy()[order], self._index(order), name="correlation")

    def explained(self, outputs: Any = None, X: Any = None) -> pd.DataFrame:
        """Shares of the variance of outputs over the inputs that the model gives to each of its parts.

        Parts are "shared", what outputs have together; "own part", a function of an output's own; terms of the model
        that it may have beside, such as "shared shocks"; and "noise". Of observations that are not Gaussian the shares
        are those of the function f behind them, without noise.

        Parameters
        ----------
        outputs
            Names or positions; all by default.
        X
            Inputs over which functions vary; some of the fit by default.

        Returns
        -------
        DataFrame
            A row for each output and a column for each part; rows add up to 1.
        """
        x = torch.as_tensor(self._some_inputs(X, _NUM_PATH), device=self._device())
        chosen, joint = find_outputs(self.output_names_, outputs), self._joint()
        rows = []
        with torch.no_grad():
            for output in chosen:
                which = torch.full((len(x),), int(output), device=x.device)
                parts = joint.prior(x, which, x, which)
                # The variance that n values of a process are expected to have around their mean.
                shares = {name: float(K.diagonal().mean() - K.mean()) for name, K in parts.items()}
                if isinstance(self.model_.likelihood, Gaussian):
                    shares["noise"] = float(self.model_.likelihood.noise_of(which[:1]))
                rows.append(shares)
        frame = pd.DataFrame(rows, self._index(chosen)).fillna(0.0).clip(lower=0.0)
        frame = frame.loc[:, (frame > 0.0).any()]
        return frame.div(frame.sum(axis=1), axis=0)

    def _some_inputs(self, X: Any, count: int) -> FloatArray:
        """Inputs in scaled units."""
        self._check_fitted()
        if X is None and self._inputs_ is None:
            raise DataError("X is None, and this model was saved without the inputs of its fit; give X.")
        inputs = self._inputs_ if X is None else self._check_inputs(X)
        assert inputs is not None
        if X is None:
            inputs = inputs[np.unique(np.linspace(0, len(inputs) - 1, min(count, len(inputs))).round().astype(int))]
        scaled: FloatArray = self.scaling_.scale_x(inputs)
        return scaled

    def _joint(self) -> Joint:
        joint: Joint = self._model_for(False).joint(self._num_draws(), self._seed)
        return joint

    def _device(self) -> torch.device:
        device: torch.device = next(self.model_.parameters()).device
        return device

    def _cells_at(self, row: FloatArray, outputs: IntArray) -> tuple[Tensor, Tensor]:
        x = torch.as_tensor(row, device=self._device()).expand(len(outputs), -1)
        return x.contiguous(), torch.as_tensor(outputs, device=x.device)

    @torch.no_grad()
    def _prior(self, joint: Joint, row: FloatArray, a: IntArray, b: IntArray) -> FloatArray:
        noise = {term.name for term in getattr(self.model_, "terms", ()) if term.is_noise}
        parts = joint.prior(*self._cells_at(row, a), *self._cells_at(row, b))
        total = sum((K for name, K in parts.items() if name not in noise), torch.zeros(()))
        return np.asarray(total.cpu().numpy())

    def _prior_variance(self, joint: Joint, row: FloatArray, a: IntArray) -> FloatArray:
        parts = np.split(a, np.arange(_NUM_OUTPUTS, len(a), _NUM_OUTPUTS))
        return np.concatenate([self._prior(joint, row, part, part).diagonal() for part in parts])

    @torch.no_grad()
    def _posterior_covariance(self, joint: Joint, row: FloatArray, outputs: IntArray) -> FloatArray:
        view = joint(*self._cells_at(row, outputs))
        every = torch.arange(len(outputs), device=self._device())
        centered = view.mean - view.mean.mean(0)
        return (view.covariance(every, every).mean(0) + centered.T @ centered / len(centered)).cpu().numpy()

    def _index(self, outputs: IntArray) -> pd.Index:
        return pd.Index([self.output_names_[i] for i in outputs], dtype=object, tupleize_cols=False)
