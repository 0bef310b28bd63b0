"""A fitted model as GPyTorch and BoTorch know one: posteriors that can be differentiated by the inputs."""

import copy
from typing import Any

import torch
from torch import Tensor

from manygp.data.names import find_outputs
from manygp.errors import DataError, SettingError
from manygp.extras import need
from manygp.functions import Joint
from manygp.likelihoods import Gaussian


def posterior(estimator: Any, X: Tensor, outputs: Any, observation_noise: bool, joint: Joint | None = None) -> Any:
    """The posterior of some outputs at inputs (..., q, d), see `Estimator.posterior`; `frozen_joint` may be at hand."""
    posteriors = need("botorch.posteriors", "botorch", "posterior")
    distributions = need("gpytorch.distributions", "botorch", "posterior")
    if not isinstance(X, Tensor) or X.dim() < 2 or X.shape[-1] != estimator.n_features_in_:
        raise DataError(
            f"posterior takes a torch tensor of shape (..., q, {estimator.n_features_in_}) and got "
            f"{tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__}; use predict_dist for other containers."
        )
    likelihood = estimator.model_.likelihood
    if estimator.scaling_.seasons is not None:
        raise SettingError("posterior knows no kernels with seasons: give sine and cosine as further inputs instead.")
    if observation_noise and getattr(estimator.model_, "cell_noise", None) is not None:
        raise SettingError(
            "posterior knows no noise that differs between cells: ask for the posterior of the function, with "
            "observation_noise=False."
        )
    if observation_noise and not isinstance(likelihood, Gaussian):
        raise SettingError(
            f"{type(likelihood).__name__} observations are not Gaussian: ask for the posterior of the function, with "
            "observation_noise=False, or for draws by predict_dist."
        )
    joint = frozen_joint(estimator, observation_noise) if joint is None else joint
    which = torch.as_tensor(find_outputs(estimator.output_names_, outputs), device=X.device)
    *batch, q, d = X.shape
    p, scaling = len(which), estimator.scaling_
    center, scale = (torch.as_tensor(part).to(X.device) for part in (scaling.x_center, scaling.x_scale))
    # Cells in the order (batch, input, output)
    x = ((X.double() - center) / scale).reshape(-1, d).repeat_interleave(p, 0)
    with torch.enable_grad():
        view = joint(x, which.repeat(len(x) // p))
        cells = torch.arange(len(x), device=X.device).view(-1, q * p)
        covariance = torch.stack([_moments(view, part) for part in cells])
        mean = view.mean.mean(0).view(-1, q * p)
    if observation_noise:
        covariance = covariance + torch.diag_embed(likelihood.noise_of(which).detach().repeat(q))
    unit, origin = (torch.as_tensor(part).to(X.device)[which].repeat(q) for part in (scaling.y_scale, scaling.y_center))
    mean, covariance = origin + unit * mean, unit.unsqueeze(-1) * covariance * unit
    # Rounding errors of a covariance that is nearly singular.
    jitter = 1e-8 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-12)
    eye = torch.eye(q * p, dtype=mean.dtype, device=mean.device)
    covariance = 0.5 * (covariance + covariance.mT) + jitter.view(-1, 1, 1) * eye
    mean, covariance = mean.view(*batch, q * p), covariance.view(*batch, q * p, q * p)
    if p == 1:
        return posteriors.GPyTorchPosterior(distributions.MultivariateNormal(mean, covariance))
    normal = distributions.MultitaskMultivariateNormal(mean.view(*batch, q, p), covariance)
    return posteriors.GPyTorchPosterior(normal)


def _moments(view: Any, cells: Tensor) -> Tensor:
    """Covariance of a mixture."""
    centered = view.mean[:, cells] - view.mean[:, cells].mean(0)
    return view.covariance(cells, cells).mean(0) + centered.T @ centered / len(centered)


def frozen_joint(estimator: Any, observation_noise: bool) -> Joint:
    """The joint distribution of a copy of the model whose parameters take no gradients."""
    model = copy.deepcopy(estimator._model_for(observation_noise))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    joint: Joint = model.joint(estimator._num_draws(), estimator._seed)
    return joint


def botorch_model(estimator: Any, outputs: Any) -> Any:
    """A BoTorch model of some outputs, see `Estimator.to_botorch`."""
    models = need("botorch.models.model", "botorch", "to_botorch")
    chosen = find_outputs(estimator.output_names_, outputs)

    class FittedModel(models.Model):
        """A fitted ManyGP model."""

        def __init__(self) -> None:
            super().__init__()
            self._joints = {noise: frozen_joint(estimator, noise) for noise in (False,)}

        @property
        def num_outputs(self) -> int:
            return len(chosen)

        @property
        def batch_shape(self) -> torch.Size:
            return torch.Size()

        def posterior(
            self,
            X: Tensor,
            output_indices: list[int] | None = None,
            observation_noise: bool = False,
            posterior_transform: Any = None,
        ) -> Any:
            which = chosen if output_indices is None else chosen[output_indices]
            found = posterior(estimator, X, which, bool(observation_noise), self._joints.get(bool(observation_noise)))
            return found if posterior_transform is None else posterior_transform(found)

    return FittedModel()
