"""How wide the interfaces are that everything else goes through."""

import inspect

import pytest

from sketchfed.algorithms import ALGORITHMS, Algorithm
from sketchfed.protection import CentralNoise, Clear, NoisySent, NoisySteps, Protection, SecureSums

METHODS = {"resolved", "begin", "given", "client", "code", "check", "server", "follow"}


def own_methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}


def test_an_algorithm_is_settings_and_eight_methods():
    assert own_methods(Algorithm) == METHODS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_hides_an_interface_of_its_own_in_private_overrides(name):
    """Whatever the rounds call is declared on `Algorithm` or in the shared settings."""
    inherited = {name for base in Algorithm.__mro__ for name in vars(base)}
    overridden = {method for method in own_methods(ALGORITHMS[name]) if method in inherited}
    assert overridden <= METHODS


@pytest.mark.parametrize("kind", [Clear, NoisySteps, NoisySent, CentralNoise, SecureSums])
def test_a_protection_replies_combines_and_charges(kind):
    assert issubclass(kind, Protection)
    assert all(callable(getattr(kind, method)) for method in ("reply", "combine", "charge"))
    assert not inspect.isabstract(kind)
