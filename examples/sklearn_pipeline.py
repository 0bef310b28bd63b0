"""
Pipelines and searches
======================

A ManyGP model is a scikit-learn estimator: it goes into pipelines, and its settings can be searched.
"""

import numpy as np
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline

import manygp
from manygp import plots

rng = np.random.default_rng(0)

# Twelve outputs of five inputs, of which only two directions matter; the outputs mix three functions.
inputs = rng.normal(size=(120, 2))
X = inputs @ rng.normal(size=(2, 5)) + 0.01 * rng.normal(size=(120, 5))
functions = np.stack([np.sin(inputs[:, 0]), np.cos(inputs[:, 1]), inputs[:, 0] * inputs[:, 1]], axis=1)
Y = functions @ rng.normal(size=(3, 12)) + 0.1 * rng.normal(size=(120, 12))

# Fixed sizes make a search quick; left out, latent_dim, num_inducing and epochs would be found in every fit.
model = manygp.TLVMOGP(num_inducing=60, epochs=30, standardize="output")
pipeline = make_pipeline(PCA(n_components=2, whiten=True), model)

folds = KFold(3, shuffle=True, random_state=0)
search = GridSearchCV(pipeline, {"tlvmogp__latent_dim": [1, 3]}, cv=folds).fit(X, Y)

for params, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
    print(f"latent_dim={params['tlvmogp__latent_dim']}: R² over three folds {score:.3f}")
print("best:", search.best_params_)
print("predictions of the best:", search.predict(X[:4]).shape)
figure = plots.plot_correlation(search.best_estimator_[-1].correlation(), title="What the outputs have in common")
