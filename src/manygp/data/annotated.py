"""AnnData, the container of single-cell and spatial biology: observations x variables, with what belongs to each.

Only attributes of the object are used, so that nothing has to be imported for those who have none.
"""

import sys
from typing import Any

from manygp.errors import DataError

# Where places of observations are kept by custom.
PLACES = "spatial"


def is_annotated(value: object) -> bool:
    """Return whether a value is an AnnData."""
    anndata = sys.modules.get("anndata")
    return anndata is not None and isinstance(value, anndata.AnnData)


def annotated_inputs(data: Any) -> Any:
    """Return the places of the observations, shape (n, d)."""
    if PLACES not in data.obsm:
        known = ", ".join(repr(key) for key in data.obsm) or "nothing"
        raise DataError(
            f"The AnnData has no obsm[{PLACES!r}] to take inputs from (obsm holds {known}); put them there, or pass "
            "inputs, values and output_names one by one."
        )
    return data.obsm[PLACES]


def annotated_values(data: Any, layer: str | None) -> Any:
    """Return the values of a layer, or of `X`, shape (n, p), sparse if they are."""
    if layer is not None and layer not in data.layers:
        known = ", ".join(repr(key) for key in data.layers) or "none"
        raise DataError(f"The AnnData has no layer {layer!r} (it has {known}); name one of them, or none for X.")
    values = data.X if layer is None else data.layers[layer]
    if values is None:
        raise DataError("The AnnData has no X; name the layer that holds the values with layer=.")
    # Of a file that is open in the background, rows can be read one by one if they are together.
    is_backed = type(values).__module__.startswith("anndata")
    return values[:] if is_backed and getattr(values, "format", "") != "csr" else values
