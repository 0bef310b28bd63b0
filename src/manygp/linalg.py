"""Linear algebra of Gaussian variables: the only home of jitter."""

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.errors import NumericalError

__all__ = ["add_jitter", "gaussian_kl", "safe_cholesky", "symmetrize", "triangular_inverse"]

_MAX_RELATIVE_JITTER = 1e-2


def add_jitter(A: Float[Tensor, "*b m m"], jitter: float) -> Float[Tensor, "*b m m"]:
    """Return A + jitter · mean(diag A) · I, so that jitter means the same at every scale of A."""
    scale = A.detach().diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    return A + torch.diag_embed((jitter * scale).expand(A.shape[:-1]))


def safe_cholesky(A: Float[Tensor, "*b m m"], jitter: float = 0.0) -> Float[Tensor, "*b m m"]:
    """Lower Cholesky factor of A, with just as much jitter as it takes.

    Parameters
    ----------
    A
        Symmetric matrices that should be positive definite.
    jitter
        Relative jitter that is always added. If the factorisation fails it grows tenfold at a time
        (from at least 1e-10) up to 1e-2.

    Raises
    ------
    NumericalError
        If A holds NaN or infinities, or stays indefinite under the largest jitter.
    """
    level = jitter
    while True:
        L, info = torch.linalg.cholesky_ex(add_jitter(A, level) if level else A)
        if not bool(info.any()):
            return L
        if not bool(torch.isfinite(A).all()):
            raise NumericalError(
                f"A covariance matrix of shape {tuple(A.shape)} holds NaN or infinite values: the optimisation has "
                "diverged; lower learning_rate or check the data for extreme values."
            )
        level = max(10 * level, 1e-10)
        if level > _MAX_RELATIVE_JITTER:
            raise NumericalError(
                f"A covariance matrix of shape {tuple(A.shape)} is not positive definite even with a relative jitter "
                f"of {_MAX_RELATIVE_JITTER}: use fewer inducing points or float64."
            )


def triangular_inverse(L: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """L⁻¹ of a lower triangular L."""
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return torch.linalg.solve_triangular(L, eye, upper=False)


def symmetrize(A: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """(A + Aᵀ) / 2."""
    return 0.5 * (A + A.mT)


def gaussian_kl(
    mean: Float[Tensor, "*b d"],
    trace: Float[Tensor, "*b"],
    logdet: Float[Tensor, "*b"],
    prior_variance: float | Tensor = 1.0,
) -> Float[Tensor, "*b"]:
    """KL[N(μ, S) ‖ N(0, σ² I)] from μ, tr S and log|S|.

    A prior with another mean is the same divergence at the difference of the means.
    """
    d = mean.shape[-1]
    variance = torch.as_tensor(prior_variance, dtype=mean.dtype, device=mean.device)
    # KL = ½ (tr S / σ² + μᵀμ / σ² − d + d log σ² − log|S|)
    return 0.5 * ((trace + mean.square().sum(-1)) / variance - d + d * variance.log() - logdet)
