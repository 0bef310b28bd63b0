"""
Bayesian optimisation
=====================

Where to look next: a BoTorch acquisition function on a fitted model (extra ``botorch``).
"""

import numpy as np
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.optim import optimize_acqf

import manygp
from manygp import plots

rng = np.random.default_rng(0)
X = rng.uniform(size=(12, 1))
Y = np.sin(6 * X + np.linspace(0, 1, 3)) + 0.02 * rng.standard_normal((12, 3))
model = manygp.OILMM(num_latents=2, progress=False).fit(X, Y)

acquisition = LogExpectedImprovement(model.to_botorch(outputs=[1]), best_f=float(Y[:, 1].max()))
bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
where, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=8)
grid = np.linspace(0.0, 1.0, 60)[:, None]
figure = plots.plot_series(model.predict_dist(grid), data_x=X, observed=Y)
print(f"look at x = {float(where):.3f}, log expected improvement {float(value):.2f}")
