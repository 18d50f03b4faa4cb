import pytest

from sketchfed.data import load
from sketchfed.errors import InputError


@pytest.fixture
def stored():
    """`load` for data sets too large to come with the tests: skips when there is no such file."""

    def loaded(name, **options):
        try:
            return load(name, **options)
        except InputError as error:
            if "is not here" not in str(error):
                raise
            pytest.skip(str(error).partition(" It is ")[0])

    return loaded
