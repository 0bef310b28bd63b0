"""Figures of the examples for the gallery of the site."""

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


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
