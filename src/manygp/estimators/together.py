"""What an estimator offers beyond single cells: functions, completed tables, posteriors for optimisation."""

from collections.abc import Hashable, Sequence
from typing import Any

from manygp.estimators.drawn import DrawnFunctions
from manygp.estimators.filling import fill_table
from manygp.estimators.relations import RelationsMixin
from manygp.summaries.together import check_draws

__all__ = ["TogetherMixin"]


class TogetherMixin(RelationsMixin):
    """Functions, multiple imputations and posteriors of an estimator; a part of `Estimator`."""

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
