"""What a fitted model is and how it came about, in a few lines."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from manygp.data.table import FloatArray
from manygp.likelihoods import Gaussian, Likelihood, likelihood_name
from manygp.variational import KernelBatch

if TYPE_CHECKING:
    from manygp.estimators.estimator import Estimator

__all__ = ["batch_lengthscales", "noise_std", "summarise"]

_WIDTH, _MOST_NUMBERS = 108, 6
# Parts of a configuration that are told elsewhere in a summary, or that no reader asks for.
_HIDDEN = {"num_features", "num_outputs", "likelihood", "terms", "coordinates", "observed", "jitter", "natural"}
_STOP_REASONS = {
    "converged": "the bound has stopped rising",
    "epochs": "as many as were asked for",
    "budget": "the time for it was up",
    "interrupted": "interrupted",
    "start": "no epoch improved on the start, which stands",
    "failed": "a step failed, and what was found before it stands",
}


def summarise(estimator: "Estimator") -> str:
    """Sizes and why, likelihood and noise, lengthscales, terms, corrections, and the time of every stage."""
    config, history, lines = estimator.config_.plain(), estimator.history_, dict[str, str]()
    lines["table"] = history.survey.get("table", f"{estimator.n_features_in_} inputs, {estimator.n_outputs_} outputs")
    sizes = {
        name: value for name, value in config.items() if name not in _HIDDEN and value not in (None, 0, 0.0, False)
    }
    lines["model"] = ", ".join(f"{name}={_shown(value)}" for name, value in sizes.items())
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
        names = [" ".join(map(str, term)) for term in config["terms"]]
        lines["terms"] = ", ".join(names) or "none, as in the paper"
    bound = f", bound {history['bound'][-1]:,.1f} nats" if len(history) else ""
    reason = _STOP_REASONS.get(history.stop_reason, history.stop_reason)
    lines["training"] = f"{len(history)} epoch{'s' * (len(history) != 1)}, {reason}{bound}"
    for correction in history.corrections:
        lines[f"corrected: {correction.name}"] = f"{correction.effect} ({correction.reason})"
    if history.stages:
        lines["seconds"] = ", ".join(f"{name} {seconds:.1f}" for name, seconds in history.stages.items())
    return f"{type(estimator).__name__}\n" + "\n".join(_line(name, text) for name, text in lines.items())


def noise_std(likelihood: Likelihood, y_scale: FloatArray) -> FloatArray:
    """Standard deviations of Gaussian noise of every output, in the units that the scales are in."""
    assert isinstance(likelihood, Gaussian)
    return np.sqrt(likelihood.variances(len(y_scale)).detach().cpu().numpy()) * y_scale


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
