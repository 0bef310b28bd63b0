"""Coverage of predictive intervals on data drawn from the model's own prior.

`python -m benchmarks.calibration` draws tables from T-LVMOGP's prior, fits each with defaults, and prints the share of
held-out cells inside the 50, 80, 90 and 95% intervals as one JSON line.
"""

import argparse
import json

import numpy as np
import torch

import manygp
from manygp.embeddings import Residual
from manygp.kernels import cross_covariance, make_kernel, rescale_kernel
from manygp.linalg import safe_cholesky

LEVELS = (0.5, 0.8, 0.9, 0.95)


def draw_from_prior(
    seed: int, num_inputs: int = 40, num_outputs: int = 40, latent_dim: int = 2, noise_std: float = 0.2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, observed table with 30% of the cells missing, and the missing values, all from one draw of the prior."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0.0, 1.0, num_inputs))[:, None]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        network = Residual(1 + latent_dim, num_blocks=3, spectral_bound=0.1).train(False)
        kernel = make_kernel("rbf", 1 + latent_dim)
        rescale_kernel(kernel, torch.tensor([1.0] + [3.0] * latent_dim), 4.0)
        x = torch.as_tensor(X / 0.15).repeat_interleave(num_outputs, 0)
        h = torch.as_tensor(rng.standard_normal((num_outputs, latent_dim))).repeat(num_inputs, 1)
        e = network(torch.cat([x, h], -1))
        f = safe_cholesky(cross_covariance(kernel, e, e), 1e-8) @ torch.as_tensor(rng.standard_normal(len(e)))
    complete = f.numpy().reshape(num_inputs, num_outputs) + noise_std * rng.standard_normal((num_inputs, num_outputs))
    missing = rng.random(complete.shape) < 0.3
    return X, np.where(missing, np.nan, complete), np.where(missing, complete, np.nan)


def coverage(seed: int, **settings: object) -> dict[float, float]:
    """Share of held-out cells inside each central interval, for one draw."""
    X, Y, held_out = draw_from_prior(seed)
    model = manygp.TLVMOGP(random_state=seed, progress=False, **settings).fit(X, Y)
    tail = 2.0 * np.abs(model.predict_dist(X).cdf(held_out)[~np.isnan(held_out)] - 0.5)
    return {level: float(np.mean(tail <= level)) for level in LEVELS}


def main() -> None:
    """Run the benchmark and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 draws in place of 20")
    draws = [coverage(seed) for seed in range(5 if parser.parse_args().quick else 20)]
    means = {f"{level:.0%}": round(float(np.mean([draw[level] for draw in draws])), 4) for level in LEVELS}
    worst = max(abs(np.mean([draw[level] for draw in draws]) - level) for level in LEVELS)
    print(json.dumps({"benchmark": "calibration", "draws": len(draws), "coverage": means, "worst": round(worst, 4)}))


if __name__ == "__main__":
    main()
