"""How annotations are checked: as type checkers read them, where a whole number is a float too."""

from beartype import BeartypeConf, beartype

__all__ = ["check"]

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
