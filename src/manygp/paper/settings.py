"""The paper's settings as data, for each data set and model.

Sizes are what makes a model of the paper that model: latent dimensions, inducing points, blocks, latent functions.
Preset "fast" takes these sizes and leaves the rest to the library. Preset "paper" follows the published procedure and
adds batches, epochs, step sizes and what else the paper set by hand. Tables were standardised
before they were fitted, so models leave them as they are.
"""

import math
from typing import Any

from manygp.errors import SettingError

Settings = dict[str, Any]

PRESETS = ("fast", "paper")
# Stands for the coordinates of the data set at hand.
COORDINATES = "coordinates"

_SV_LMC_ERA5 = {"num_latents": 100, "num_inducing": 10}
_GS_ERA5 = {"num_components": 3, "latent_dim": 3, "num_inducing_latents": 20, "num_inducing_inputs": 10}
# Latent vectors near the coordinates of their outputs.
_NEAR_PLACE: Settings = {"latent_prior_mean": COORDINATES, "latent_prior_variance": 0.01}
_GS_SEA: Settings = {"latent_dim": 2, "num_inducing_latents": 30, "num_inducing_inputs": 10}
_GS_GENES: Settings = {
    "latent_dim": 3,
    "num_inducing_latents": 20,
    "num_inducing_inputs": 25,
    "likelihood": "zinb",
    "latent_prior_mean": "pca",
}
_BATCHES: dict[str, Settings] = {
    "eeg": {"batch_inputs": 128, "batch_outputs": 7},
    "sarcos": {"batch_inputs": 256, "batch_outputs": 7},
    "era5": {"batch_inputs": 30, "batch_outputs": 128},
    "sea": {"batch_inputs": 24, "batch_outputs": 256},
    "genes": {"batch_inputs": 256, "batch_outputs": 64},
}
# The paper's model is one of inducing points alone.
_ALONE: Settings = {"num_blocks": 3, "num_neighbors": 0}
_T_LVMOGP: dict[str, Settings] = {
    "eeg": {"latent_dim": 3, "num_inducing": 200, **_ALONE, **_BATCHES["eeg"]},
    "sarcos": {"latent_dim": 5, "num_inducing": 200, **_ALONE, **_BATCHES["sarcos"]},
    "era5": {"latent_dim": 3, "num_inducing": 200, **_ALONE, **_BATCHES["era5"]},
    "sea": {"latent_dim": 2, "num_inducing": 300, **_ALONE, **_BATCHES["sea"]},
    "genes": {"latent_dim": 3, "num_inducing": 500, "likelihood": "zinb", **_ALONE, **_BATCHES["genes"]},
}

# Groups of data sets that share their settings.
_GROUPS = {
    "eeg": ("eeg",),
    "sarcos": ("sarcos", "sarcos-clean", "sarcos-published"),
    "era5": ("era5-random", "era5-block"),
    "sea": ("copernicus", "ersst"),
    "genes": ("prostate", "visium-dlpfc"),
}
_SIZES: dict[str, dict[str, Settings]] = {
    "eeg": {
        "tlvmogp": _T_LVMOGP["eeg"],
        "ind-gp": {},
        "sv-lmc": {"num_latents": 3, "num_inducing": 200},
        "oilmm": {"num_latents": 3, "num_inducing": 200},
        "sgprn": {"num_latents": 3},
        "g-mogp": {"num_inducing": 200},
        "gs-lvmogp": {"num_components": 3, "latent_dim": 3, "num_inducing_latents": 4, "num_inducing_inputs": 50},
    },
    "sarcos": {
        "tlvmogp": _T_LVMOGP["sarcos"],
        "sv-lmc": {"num_latents": 5, "num_inducing": 200},
        "oilmm": {"num_latents": 7, "num_inducing": 200},
        "g-mogp": {"num_inducing": 100},
        "gs-lvmogp": {"num_components": 3, "latent_dim": 3, "num_inducing_latents": 5, "num_inducing_inputs": 40},
    },
    "era5": {
        "tlvmogp": _T_LVMOGP["era5"],
        "ind-gp": {},
        "sv-lmc": _SV_LMC_ERA5,
        "oilmm": {"num_latents": 100, "num_inducing": 10},
        "sgprn": {"num_latents": 100},
        "g-mogp": {"num_inducing": 10},
        "gs-lvmogp": _GS_ERA5,
    },
    "sea": {"tlvmogp": _T_LVMOGP["sea"] | _NEAR_PLACE, "gs-lvmogp": _GS_SEA | _NEAR_PLACE},
    "genes": {"tlvmogp": _T_LVMOGP["genes"], "gs-lvmogp": _GS_GENES},
}
_PUBLISHED_PROCEDURE: dict[str, dict[str, Settings]] = {
    "eeg": {
        # The noise of the EEG is held at a standard deviation of 0.01.
        "tlvmogp": {"spectral_bound": 0.005, "freeze_likelihood": math.inf},
        "sv-lmc": _BATCHES["eeg"],
        "oilmm": {"regularization": 1.6},
        "sgprn": {"max_grad_norm": 10.0},
        "g-mogp": _BATCHES["eeg"],
        "gs-lvmogp": _BATCHES["eeg"],
    },
    "sarcos": {
        "tlvmogp": {"spectral_bound": 1.0, "freeze_likelihood": 500},
        "sv-lmc": _BATCHES["sarcos"],
        "g-mogp": _BATCHES["sarcos"],
        "gs-lvmogp": _BATCHES["sarcos"],
    },
    "era5": {
        "tlvmogp": {"spectral_bound": 0.1, "freeze_likelihood": 0},
        "ind-gp": {"epochs": 50},
        "sv-lmc": _BATCHES["era5"],
        "g-mogp": _BATCHES["era5"],
        "gs-lvmogp": _BATCHES["era5"],
    },
    "sea": {"tlvmogp": {"spectral_bound": 0.7, "freeze_likelihood": 500}, "gs-lvmogp": _BATCHES["sea"]},
    "genes": {
        "tlvmogp": {
            "spectral_bound": None,
            "epochs": 300,
            "learning_rate": 0.0005,
            "freeze_likelihood": math.inf,
            "latent_prior_mean": "pca",
        },
        "gs-lvmogp": {"epochs": 300, "learning_rate": 0.0005, "freeze_likelihood": math.inf, **_BATCHES["genes"]},
    },
}
_PAPER: Settings = {"preset": "paper", "standardize": False}
# What a preset sets for a model on a data set, by (data set, model, preset).
_REGISTERED: dict[tuple[str, str, str], Settings] = {}


def settings_for(dataset: str, model: str, preset: str) -> Settings:
    """Settings of a model on a data set; none where nothing was published or registered.

    Parameters
    ----------
    dataset, model
        Names.
    preset
        "fast" or "paper".
    """
    if preset not in PRESETS:
        raise SettingError(f"There is no preset {preset!r}; choose one of: {', '.join(PRESETS)}.")
    return dict(_REGISTERED.get((dataset, model, preset), {}))


def register_settings(dataset: str, model: str, preset: str, settings: Settings) -> None:
    """Set the settings of a model on a data set for a preset; what was set before is replaced."""
    _REGISTERED[dataset, model, preset] = dict(settings)


def _register_published() -> None:
    for group, models in _SIZES.items():
        for dataset in _GROUPS[group]:
            for model, sizes in models.items():
                procedure = _PUBLISHED_PROCEDURE[group].get(model, {})
                register_settings(dataset, model, "fast", sizes)
                register_settings(dataset, model, "paper", _PAPER | sizes | procedure)


_register_published()
