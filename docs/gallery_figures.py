"""Order and figures of the examples in the gallery of the site."""

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst

_FIRST = "gaps", "xarray_field", "region_mean", "sea_temperature", "robot_arm", "counts", "spatial_counts", "cells"


class InReadingOrder:
    """What most people want first, then all others by name."""

    def __init__(self, folder: str):
        self.folder = folder

    def __call__(self, filename: str) -> tuple[int, str]:
        name = filename.removesuffix(".py")
        return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save figures that an example leaves in its variables.

    Ours are drawn without pyplot, whose figures are what sphinx-gallery would find by itself.
    """
    paths = []
    for figure in block_vars["example_globals"].values():
        if isinstance(figure, Figure) and not hasattr(figure, "is_in_gallery"):
            figure.is_in_gallery = True  # type: ignore[attr-defined]
            paths.append(next(block_vars["image_path_iterator"]))
            figure.savefig(paths[-1], dpi=110)
    return figure_rst(paths, gallery_conf["src_dir"])
