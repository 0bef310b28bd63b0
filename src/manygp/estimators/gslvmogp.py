"""The GS-LVMOGP and LV-MOGP estimators."""

from typing import Any

import gpytorch
from torch import nn

from manygp.estimators.separable import SeparableEstimator

__all__ = ["GSLVMOGP", "LVMOGP"]


class GSLVMOGP(SeparableEstimator):
    """Generalised scalable latent variable multi-output GP: a sum of separable kernels.

    Every output has a latent vector for each of Q components; its covariance with another output is the sum over the
    components of a kernel on the inputs times a kernel on the latent vectors. Inducing points lie in both spaces. See
    `docs/models/gslvmogp.md` for the model and its cost.

    Parameters
    ----------
    num_components
        Number Q of separable kernels. With 1 every factorisation is of the size of one space; see `LVMOGP`.
    latent_dim
        Dimensions of the latent vectors; "auto" chooses them by held-out cells.
    num_inducing_latents, num_inducing_inputs
        Inducing points in the latent space and in the input space; "auto" follows from the latent dimensions and the
        roughness of the functions.
    kernel, latent_kernel
        Kernels on inputs and on latent vectors: "rbf", "matern12", "matern32", "matern52", or a GPyTorch kernel.
    likelihood
        "gaussian", or any other name or likelihood.
    latent_posterior
        "full", "diagonal" or "point".
    latent_prior_mean, latent_prior_variance
        Prior of the latent vectors, the same for all components. Means: None for zero, a table with a row for each
        output, such as coordinates in any units, or "pca", as in `TLVMOGP`; they are standardised, and one variance is
        for the standardised ones.
    epochs
        Passes over the data; "auto" runs until the bound stops rising.
    batch_inputs, batch_outputs
        Inputs and outputs in a batch; "auto" aims at a few thousand observed cells.
    learning_rate, num_samples, standardize, preset, device, random_state, progress, max_grad_norm
        See `TLVMOGP`.
    dtype
        "float64" or "float32" for covariances of batches; the rest is always float64.
    freeze_likelihood
        Epochs for which the noise stays at its start; `math.inf` never learns it. "auto" is none.

    Attributes
    ----------
    latent_mean_ : array of shape (p, num_components, latent_dim)
    latent_covariance_ : array of shape (p, num_components, latent_dim, latent_dim)
    inducing_inputs_ : array of shape (num_inducing_inputs, d)
    inducing_latents_ : array of shape (num_components, num_inducing_latents, latent_dim)
    history_ : `History`
    model_, scaling_ : the trained module, and the map between its units and the user's

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> Y[10:20, 2] = np.nan
    >>> model = manygp.GSLVMOGP(num_components=2, epochs=20).fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    def __init__(
        self,
        num_components: int = 3,
        latent_dim: int | str = "auto",
        num_inducing_latents: int | str = "auto",
        num_inducing_inputs: int | str = "auto",
        kernel: str | gpytorch.kernels.Kernel = "rbf",
        latent_kernel: str | gpytorch.kernels.Kernel = "rbf",
        likelihood: str | nn.Module = "gaussian",
        latent_posterior: str = "full",
        latent_prior_mean: Any = None,
        latent_prior_variance: float = 1.0,
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
        self.num_components = num_components
        self.latent_dim = latent_dim
        self.num_inducing_latents = num_inducing_latents
        self.num_inducing_inputs = num_inducing_inputs
        self.kernel = kernel
        self.latent_kernel = latent_kernel
        self.likelihood = likelihood
        self.latent_posterior = latent_posterior
        self.latent_prior_mean = latent_prior_mean
        self.latent_prior_variance = latent_prior_variance
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

    @property
    def _num_components(self) -> int:
        return self.num_components


class LVMOGP(SeparableEstimator):
    """Latent variable multi-output GP: one separable kernel, the case Q = 1 of `GSLVMOGP`.

    The covariance of two cells is a kernel on their inputs times a kernel on the latent vectors of their outputs. All
    work is done on the factors of Kronecker products, so that many inducing inputs are cheap. Settings and attributes
    are those of `GSLVMOGP` without `num_components`; latent means have shape (p, latent_dim).

    Parameters
    ----------
    latent_dim, num_inducing_latents, num_inducing_inputs, kernel, latent_kernel, likelihood, latent_posterior
        See `GSLVMOGP`.
    latent_prior_mean, latent_prior_variance, epochs, batch_inputs, batch_outputs, learning_rate, num_samples
        See `GSLVMOGP`.
    standardize, preset, dtype, device, random_state, progress, freeze_likelihood, max_grad_norm
        See `GSLVMOGP`.

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> Y[10:20, 2] = np.nan
    >>> model = manygp.LVMOGP(epochs=20).fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    def __init__(
        self,
        latent_dim: int | str = "auto",
        num_inducing_latents: int | str = "auto",
        num_inducing_inputs: int | str = "auto",
        kernel: str | gpytorch.kernels.Kernel = "rbf",
        latent_kernel: str | gpytorch.kernels.Kernel = "rbf",
        likelihood: str | nn.Module = "gaussian",
        latent_posterior: str = "full",
        latent_prior_mean: Any = None,
        latent_prior_variance: float = 1.0,
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
        self.num_inducing_latents = num_inducing_latents
        self.num_inducing_inputs = num_inducing_inputs
        self.kernel = kernel
        self.latent_kernel = latent_kernel
        self.likelihood = likelihood
        self.latent_posterior = latent_posterior
        self.latent_prior_mean = latent_prior_mean
        self.latent_prior_variance = latent_prior_variance
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

    @property
    def _num_components(self) -> int:
        return 1
