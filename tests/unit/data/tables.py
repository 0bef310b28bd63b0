"""Random tables with gaps for property-based tests."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manygp.data import Cells, Grid, Table

# Wide enough to find rounding trouble, narrow enough for sums of squares to stay exact to a tolerance; what is too
# small to square has a warning and a test of its own.
numbers = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda value: value if abs(value) > 1e-100 else 0.0)


@st.composite
def grids(draw: st.DrawFn, max_inputs: int = 9, max_outputs: int = 6) -> Grid:
    """Draw a grid with gaps, at least one observed cell, and sometimes a mask."""
    n, p = draw(st.integers(1, max_inputs)), draw(st.integers(1, max_outputs))
    X = draw(hnp.arrays(np.float64, (n, draw(st.integers(1, 3))), elements=numbers))
    Y = draw(hnp.arrays(np.float64, (n, p), elements=st.one_of(numbers, st.just(np.nan))))
    mask = draw(st.one_of(st.none(), hnp.arrays(np.bool_, (n, p))))
    row, column = draw(st.integers(0, n - 1)), draw(st.integers(0, p - 1))
    Y[row, column] = draw(numbers)
    if mask is not None:
        mask[row, column] = True
    return Grid(X, Y, mask=mask)


@st.composite
def cell_lists(draw: st.DrawFn) -> Cells:
    """Draw a list of cells over a few outputs, some of them perhaps without a cell."""
    c, p = draw(st.integers(1, 20)), draw(st.integers(1, 6))
    return Cells(
        draw(hnp.arrays(np.float64, (c, draw(st.integers(1, 3))), elements=numbers)),
        draw(hnp.arrays(np.int64, c, elements=st.integers(0, p - 1))),
        draw(hnp.arrays(np.float64, c, elements=numbers)),
        tuple(range(p)),
    )


tables: st.SearchStrategy[Table] = st.one_of(grids(), cell_lists())


def observed_cells(table: Table) -> set[tuple[int, int, float]]:
    """Return (row, output, value) of every observed cell, by the plainest route there is."""
    if isinstance(table, Cells):
        return {(i, int(p), float(y)) for i, (p, y) in enumerate(zip(table.output, table.y, strict=True))}
    assert isinstance(table, Grid)
    mask = np.ones(table.Y.shape, dtype=bool) if table.mask is None else table.mask
    return {
        (i, p, float(table.Y[i, p]))
        for i in range(table.num_inputs)
        for p in range(table.num_outputs)
        if mask[i, p] and not np.isnan(table.Y[i, p])
    }
