"""What a refused configuration says."""

import pytest

from sketchfed.config import load_config
from sketchfed.errors import InputError


def refusal(tables, *changes) -> str:
    with pytest.raises(InputError) as refused:
        load_config(tables, changes)
    return str(refused.value)
