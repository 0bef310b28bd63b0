"""
Counts of genes in space
========================

An AnnData goes in; smooth maps and a map of the genes come out. This reads a corner of the Visium section
``visium_dlpfc_151673.h5ad`` from the folder that MANYGP_DATA names, or generates a section if there is no such file. A
tenth of the counts are held out.
"""

import os
from pathlib import Path

import anndata
import numpy as np
from scipy import sparse

import manygp
from manygp import plots

rng = np.random.default_rng(0)
path = Path(os.environ.get("MANYGP_DATA", ".")) / "visium_dlpfc_151673.h5ad"
if path.exists():
    section = anndata.read_h5ad(path)
    common = np.argsort(-np.asarray(section.X.mean(0)).ravel())[:20]
    section = section[np.argsort(section.obsm["spatial"].sum(1))[:250], common].copy()
else:
    places = rng.uniform(size=(250, 2))
    layers = np.column_stack([np.sin(4 * places[:, 0]), np.cos(4 * places[:, 1])])
    rate = np.exp(layers @ rng.normal(size=(2, 20)) + rng.normal(size=20))
    section = anndata.AnnData(sparse.csr_matrix(rng.poisson(rate * rng.gamma(5.0, 0.2, size=(250, 1)))))
    section.obsm["spatial"] = places

hidden = rng.random(section.shape) < 0.1
model = manygp.TLVMOGP(likelihood="zinb", num_inducing=50, latent_dim=2, epochs=20)
model.fit(section, mask=~hidden, exposure="auto")

scores = model.evaluate(section, mask=hidden, exposure=model.exposure_)
print(f"Held-out counts: nll {scores['nll']:.2f}, in their 90% intervals {scores['coverage90']:.0%}")
model.annotate(section)
print("Layers:", list(section.layers), "and latent vectors of genes:", section.varm["manygp_latent"].shape)

gene = section.var_names[0]
maps = {"counts": section.to_df()[gene], "smooth map": section.to_df("manygp_mean")[gene]}
figure = plots.plot_map(*section.obsm["spatial"].T, maps, title=f"gene {gene}", axis_labels=("x", "y"), unit="counts")
