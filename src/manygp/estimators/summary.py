"""What a fitted model is and how it came about, in a few lines."""

import textwrap
from typing import Any

import numpy as np
from torch import Tensor

from manygp.data import Scaling
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.estimators.config import Config
from manygp.likelihoods import Gaussian, likelihood_name
from manygp.training import History
from manygp.variational import KernelBatch

_WIDTH, _MOST_NUMBERS = 108, 6
# Parts of a configuration that are told elsewhere in a summary, or that no reader asks for.
_HIDDEN = {"num_features", "num_outputs", "likelihood", "terms", "coordinates", "observed", "jitter", "natural"}


class SummaryMixin:
    """What a fitted estimator tells about itself."""

    model_: Any
    scaling_: Scaling
    history_: History
    n_features_in_: int
    n_outputs_: int
    _check_fitted: Any

    @property
    def config_(self) -> Config:
        """What the model is, with nothing left open: its resolved configuration."""
        self._check_fitted()
        return self._resolved()

    @property
    def survey_(self) -> str:
        """What the survey of the table found, a line for each fact that was asked for; empty if there was none."""
        self._check_fitted()
        return "\n".join(f"{name:<13} {fact}" for name, fact in self.history_.survey.items())

    @property
    def noise_std_(self) -> FloatArray:
        """Standard deviations of Gaussian noise of every output in the user's units, shape (p,)."""
        self._check_fitted()
        likelihood, y_scale = self.model_.likelihood, self.scaling_.y_scale
        if not isinstance(likelihood, Gaussian):
            name = likelihood_name(likelihood)
            raise SettingError(f"likelihood={name!r} has no noise variance: only Gaussian ones have.")
        return np.sqrt(likelihood.variances(len(y_scale)).detach().cpu().numpy()) * y_scale

    @property
    def lengthscales_(self) -> FloatArray:
        """Lengthscales of the inputs in the user's units, shape (d,), or (q, d) for several kernels."""
        self._check_fitted()
        found = self._lengthscales()
        if found is None:
            raise SettingError("This model has no lengthscales that can be told in your units: look at model_.")
        # Circles of seasons, behind the inputs, have no units.
        return found[..., : self.n_features_in_]

    def summary(self) -> str:
        """What the model is and how it came about: sizes and why, noise, lengthscales, terms, corrections, times."""
        self._check_fitted()
        lines = _facts(self)
        return f"{type(self).__name__}\n" + "\n".join(_line(name, text) for name, text in lines.items())

    def _resolved(self) -> Config:
        """The configuration of the model as it is now."""
        config: Config = self.model_.config
        return config

    def _lengthscales(self) -> FloatArray | None:
        """Lengthscales in the user's units, where the kernels are ours."""
        return None


def _facts(estimator: SummaryMixin) -> dict[str, str]:
    config, history, lines = estimator.config_.plain(), estimator.history_, dict[str, str]()
    lines["table"] = history.survey.get("table", f"{estimator.n_features_in_} inputs, {estimator.n_outputs_} outputs")
    told = {name: value for name, value in config.items() if name not in _HIDDEN and value not in (None, 0, False)}
    lines["model"] = ", ".join(f"{name}={_shown(value)}" for name, value in told.items())
    for name, fact in history.survey.items():
        if name != "table":
            lines[f"survey: {name}"] = fact
    lines["likelihood"] = likelihood_name(estimator.model_.likelihood)
    if isinstance(estimator.model_.likelihood, Gaussian):
        lines["noise"] = f"standard deviation {_numbers(estimator.noise_std_)} in units of the outputs"
    lengthscales = estimator._lengthscales()
    if lengthscales is not None:
        lines["lengthscales"] = f"{_numbers(lengthscales)} in units of the inputs"
    if "terms" in config:
        lines["terms"] = ", ".join(str(name) for name, *_ in config["terms"]) or "none, as in the paper"
    bound = f", bound {history['bound'][-1]:,.1f} nats" if len(history) else ""
    lines["training"] = f"{len(history)} epoch{'s' * (len(history) != 1)}{bound}; it ended because {history.ending}"
    for correction in history.corrections:
        lines[f"corrected: {correction.name}"] = f"{correction.effect} ({correction.reason})"
    if history.stages:
        lines["seconds"] = ", ".join(f"{name} {seconds:.1f}" for name, seconds in history.stages.items())
    return lines


def batch_lengthscales(kernels: KernelBatch, units: Tensor | float, x_scale: FloatArray) -> FloatArray | None:
    """Lengthscales (q, d) of many kernels in the units that the scales are in; None for kernels that are not ours."""
    if not kernels.is_fused:
        return None
    lengthscale = kernels.kernel.base_kernel.lengthscale.squeeze(-2) * units
    return lengthscale.detach().cpu().numpy() * x_scale


def _line(name: str, text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<22} ", subsequent_indent=" " * 25)


def _shown(value: object) -> str:
    return str(value["module"]) if isinstance(value, dict) and "module" in value else str(value)


def _numbers(values: FloatArray) -> str:
    """A few numbers as they are, many by their range and median."""
    flat = np.unique(np.ravel(values)) if np.ndim(values) > 1 else np.asarray(values)
    if len(flat) > 1 and np.ptp(flat) <= 1e-9 * np.abs(flat).max():
        flat = flat[:1]
    if len(flat) <= _MOST_NUMBERS:
        return ", ".join(f"{value:.3g}" for value in flat)
    return f"{flat.min():.3g} to {flat.max():.3g}, median {np.median(flat):.3g}"
