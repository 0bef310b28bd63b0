"""The exception tree: one base to catch, and the built-in kinds that callers expect."""

import pytest
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

import manygp
from manygp import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_manygp_error_and_public(name):
    error = getattr(errors, name)
    assert issubclass(error, manygp.ManyGPError)
    assert getattr(manygp, name) is error


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("DataError", ValueError),
        ("SettingError", ValueError),
        ("ModelFileError", ValueError),
        ("NumericalError", ArithmeticError),
        ("NotFittedError", SklearnNotFittedError),
    ],
)
def test_errors_are_also_what_others_catch(name, kind):
    assert issubclass(getattr(errors, name), kind)
