"""Claims and charges that tests of the accountant share."""

from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.claims import Charge, Claim


def claim(delta=1e-5, adjacency="add-remove", accountant="pld", **other):
    return Claim(unit="client", adjacency=adjacency, observer="public", delta=delta, accountant=accountant, **other)


def spent(multiplier, times=1, *, sampling=1.0, about=None, **other):
    return epsilon_of({Charge(multiplier=multiplier, sampling=sampling, **other): times}, about or claim())
