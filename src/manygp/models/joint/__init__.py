"""How each model sees many cells together: the leaves of `manygp.functions.Joint`."""
