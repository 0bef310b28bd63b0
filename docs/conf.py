"""How the site is built: `make docs` runs Sphinx over the pages of this folder, strictly.

The pages are plain Markdown that reads well in any viewer, so links to files beside `docs/` are led to pages of the
site here, and not in the pages.
"""

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

from manygp import __version__

sys.path.insert(0, str(Path(__file__).parent))  # gallery_figures

project = "ManyGP"
author = project_copyright = "The ManyGP developers"
version = release = __version__
html_title = f"ManyGP {__version__}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["results"]
# Headings have the anchors that links in the pages are written for.
myst_heading_anchors = 4

html_theme = "furo"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"

# In docstrings, names and formulas stand in single backticks.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_google_docstring = False
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False

# Examples make their data up; those that read files when there are any must not differ from one machine to another.
os.environ.pop("MANYGP_DATA", None)
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "image_scrapers": ("gallery_figures.scrape",),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "within_subsection_order": "gallery_figures.InReadingOrder",
    "copyfile_regex": r"^$",
}

# Words of descriptions that happen to be names of several things.
suppress_warnings = ["ref.python"]

_PLACES = {
    r"\.\./README\.md": "/readme.md",
    r"\.\./CHANGELOG\.md": "/changelog.md",
    r"(?:\.\./)?CONTRIBUTING\.md": "/contributing.md",
    r"(?:\.\./)*examples/GALLERY_HEADER\.rst": "/gallery/index.rst",
    r"(?:\.\./)*examples/(\w+)\.py": r"/gallery/\1.rst",
    r"CODE_OF_CONDUCT\.md": "/code_of_conduct.md",
    r"(?:\.\./)?LICENSE": "/license.md",
    r"CHANGELOG\.md": "/changelog.md",
}


def lead_links_to_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn links to files of the repository into links to the pages of the site that show them."""
    for place, page in _PLACES.items():
        source[0] = re.sub(rf"\]\({place}(#[\w-]+)?\)", rf"]({page})", source[0])


def lead_included_links_to_pages(app: Sphinx, path: Path, parent: str, source: list[str]) -> None:
    """The same for a file above `docs/` that a page of the site shows."""
    source[0] = re.sub(r"\]\(docs/", "](", source[0])
    lead_links_to_pages(app, parent, source)


def escape_formulas(app: Sphinx, kind: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Keep |x|², a * b and x_ in docstrings from being read as markup."""
    if not name.startswith("manygp"):
        return
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`[^`]*`)", line)
            parts[::2] = [re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
            lines[i] = "".join(parts)


def skip_foreign(app: Sphinx, kind: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Leave out what scikit-learn adds to every estimator for its routing of metadata."""
    return True if name.endswith("_request") or name == "get_metadata_routing" else None


def setup(app: Sphinx) -> None:
    """Register what is done to pages and docstrings as they are read."""
    app.connect("source-read", lead_links_to_pages)
    app.connect("include-read", lead_included_links_to_pages)
    app.connect("autodoc-process-docstring", escape_formulas, priority=400)
    app.connect("autodoc-skip-member", skip_foreign)
