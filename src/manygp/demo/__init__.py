"""The main job on built-in data: a climate table with gaps, fitted, compared, drawn and written out."""

from manygp.demo.run import run_demo

__all__ = ["run_demo"]
