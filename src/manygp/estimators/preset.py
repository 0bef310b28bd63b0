"""Presets: how a model is made, begun and trained, as one choice."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Preset:
    """A way from a table to a trained model."""

    #: Whether q(u) moves by natural steps, rates follow a schedule, and steps touch rows of few outputs; otherwise Adam
    #: moves everything at one rate.
    natural: bool
    #: Whether a model begins with what a survey of the table tells, and may be corrected by cells left out once it is
    #: trained; otherwise it begins at its prior with published sizes, and is what training has made of it.
    from_data: bool
    #: Adam's step size.
    learning_rate: float
    #: Passes over the data; None trains until the bound stops rising.
    epochs: int | None
    #: Share of the epochs for which the likelihood stays at its start.
    frozen_share: float = 0.0


FAST = Preset(natural=True, from_data=True, learning_rate=0.015, epochs=None)
QUICK = replace(FAST, epochs=10)
PUBLISHED = Preset(natural=False, from_data=False, learning_rate=0.01, epochs=1000)
