import pytest
from killable import Server


@pytest.fixture(scope="session")
def server():
    """Starts `sketchfed` processes at once."""
    with Server() as running:
        yield running
