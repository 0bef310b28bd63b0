"""Settings: checks, made once, when a fit begins, and seasons of a kernel in the units of a table."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import gpytorch
import numpy as np
import torch

from manygp.data import Table
from manygp.data.seasons import find_seasons
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.kernels import KERNELS
from manygp.kernels.composed import parts_of, seasons_of
from manygp.likelihoods import LIKELIHOODS, Likelihood
from manygp.memory import check_memory

if TYPE_CHECKING:
    from manygp.estimators.estimator import Estimator

# What sizes take about, in bytes, and by which power of them: covariances among inducing points and latent dimensions,
# a module for each block and component, covariances for each latent process and kernel, some numbers for each draw.
_BYTES = {
    "latent_dim": (8, 2),
    "num_inducing": (8, 2),
    "num_inducing_latents": (8, 2),
    "num_inducing_inputs": (8, 2),
    "num_blocks": (100_000, 1),
    "num_components": (100_000, 1),
    "num_latents": (50_000, 1),
    "num_kernels": (50_000, 1),
    "num_samples": (4_000, 1),
}


def check_choice(name: str, value: Any, choices: Iterable[Any], other: str = "") -> None:
    """Refuse a value that is not among the choices; `other` tells what else there is."""
    allowed = list(choices)
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in allowed):
        raise SettingError(f"{name}={value!r} is unknown: use one of {', '.join(map(repr, allowed))}{other}.")


def check_kernel(name: str, value: Any) -> None:
    """Refuse what is neither the name of a kernel nor a kernel."""
    if isinstance(value, gpytorch.kernels.Kernel):
        return
    if not isinstance(value, str) or "periodic" not in value:
        check_choice(name, value, KERNELS, ", with seasons as in 'rbf * periodic(24)', or a GPyTorch kernel")
        return
    bases = [part.base for part in parts_of(value) if part.base is not None]
    for base in bases:
        check_choice(name, base, KERNELS, ", each with seasons or without")
    if not bases:
        raise SettingError(f"{name}={value!r} only repeats itself: add or multiply a kernel, as in 'rbf * {value}'.")


def check_likelihood(value: Any, automatic: tuple[str, ...] = ()) -> None:
    """Refuse what is neither the name of a likelihood, nor one, nor an automatic choice."""
    if not isinstance(value, Likelihood | gpytorch.likelihoods.Likelihood):
        check_choice("likelihood", value, (*LIKELIHOODS, *automatic), " or a likelihood")


def check_size(name: str, value: Any, minimum: int = 1, automatic: Iterable[Any] = ()) -> None:
    """Refuse what is not a whole number of at least `minimum`, nor one of the automatic choices."""
    if any(value is choice or (isinstance(value, str) and value == choice) for choice in automatic):
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        other = "".join(f" or {choice!r}" for choice in automatic)
        raise SettingError(f"{name}={value!r} is no valid size: use a whole number of at least {minimum}{other}.")


def check_sizes(settings: Mapping[str, Any], device: torch.device) -> None:
    """Refuse sizes that no memory could hold, before anything looks at the data."""
    for name, (num_bytes, power) in _BYTES.items():
        value = settings.get(name)
        if isinstance(value, int | np.integer) and value > 0:
            check_memory(f"{name}={value}", num_bytes * float(value) ** power, device)


def check_inducing(num_inducing: Any, most: int, places: str) -> None:
    """Refuse more inducing points than there are inputs, or other places, to choose them from."""
    if not isinstance(num_inducing, str) and num_inducing is not None and num_inducing > most:
        raise SettingError(f"num_inducing={num_inducing} exceeds the {most} {places}: use fewer or 'auto'.")


def check_positive(name: str, value: Any, optional: bool = False, automatic: Iterable[str] = ()) -> None:
    """Refuse what is not a positive finite number, nor None where that is allowed, nor an automatic choice."""
    if (value is None and optional) or (isinstance(value, str) and value in automatic):
        return
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        other = "".join(f" or {choice!r}" for choice in automatic) + (" or None" if optional else "")
        raise SettingError(f"{name}={value!r} is out of range: use a positive number{other}.")


def resolve_device(device: str | torch.device) -> torch.device:
    """The device to compute on; "auto" is the first GPU if there is one."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        if resolved.type == "mps":
            raise SettingError(f"device={device!r} has no double precision, which models need: choose 'auto' or 'cpu'.")
        # A device without memory, such as "meta", cannot give numbers back.
        torch.zeros(1, device=resolved).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        known = "'auto', 'cpu' or 'cuda'" if torch.cuda.is_available() else "'auto' or 'cpu'"
        raise SettingError(f"device={device!r} cannot be used here: choose {known}.") from error
    return resolved


def resolve_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The dtype of the work over batches."""
    known = {"float64": torch.float64, "float32": torch.float32}
    name = str(dtype).removeprefix("torch.")
    if name not in known:
        raise SettingError(f"dtype={dtype!r} is unknown: use 'float64' or 'float32'.")
    return known[name]


def resolve_seed(random_state: Any) -> int:
    """A seed from an integer, a numpy generator, or None for a fresh one."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    is_integer = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if not is_integer or not 0 <= random_state < 2**63:
        raise SettingError(f"random_state={random_state!r} is no seed: use a whole number from 0 to 2⁶³ − 1, or None.")
    return int(random_state)


def seasons_in(estimator: "Estimator", table: Table) -> FloatArray | None:
    """Column and period of every season of an estimator's kernel, shape (k, 2); None where there are none."""
    settings = estimator.get_params(deep=False)
    if seasons_of(settings.get("latent_kernel")):
        raise SettingError("latent_kernel has no seasons, which belong to inputs: write them into kernel.")
    seasons = seasons_of(settings.get("kernel"))
    return find_seasons([(season.period, season.column) for season in seasons], table) if seasons else None
