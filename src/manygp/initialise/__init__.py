"""Initialisation: where models begin.

A `Survey` tells what a table says before training, each fact computed once: pseudo-values of f, levels, rank, scaling,
factors, lengthscales, noise, gaps. One file for each model then says how that model begins with it.
"""

from manygp.initialise.evidence import Lengthscales, evidence_lengthscales
from manygp.initialise.survey import NoiseSpread, Survey

__all__ = ["Lengthscales", "NoiseSpread", "Survey", "evidence_lengthscales"]
