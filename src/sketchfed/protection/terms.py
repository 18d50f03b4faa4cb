"""The terms of a round's secure sum: both sides work them out, so that a server cannot make clients take part on others."""

from sketchfed.algorithms.base import cohort, round_seed
from sketchfed.errors import SecureSumError
from sketchfed.privacy.discrete import DiscreteGaussian
from sketchfed.privacy.rounded import Rounded
from sketchfed.protection.protection import Protection
from sketchfed.secure import Terms, planned_terms
from sketchfed.seeds import PublicSeed


def terms_of(protection: Protection, seed: PublicSeed, index: int, clients: tuple[int, ...], attempt: int) -> Terms:
    """What the clients of a round agree on; each attempt at a round has a session of its own."""
    secure, mechanism = protection.secure, protection.summation
    assert secure is not None
    assert isinstance(mechanism, DiscreteGaussian | Rounded)
    return planned_terms(
        session=round_seed(seed, index).child("secure", attempt).to_bytes(),
        round=index,
        clients=clients,
        size=mechanism.size,
        bits=mechanism.bits,
        least=secure.least(len(clients)),
        neighbours=secure.neighbours,
        colluders=secure.colluders,
        dropouts=round(1 - secure.survivors, 9),  # 1 - 0.9 is a little less than a tenth
    )


def agreed(protection: Protection, proposed: Terms, seed: PublicSeed) -> Terms:
    """The terms that a server proposes, if a client works out the same; who takes part follows from the public seed."""
    assert protection.secure is not None
    count = protection.cohort
    clients = tuple(cohort(seed, proposed.round, population=protection.population, count=count))
    for attempt in range(protection.secure.attempts):
        if proposed == terms_of(protection, seed, proposed.round, clients, attempt):
            return proposed
    raise SecureSumError(
        f"the server proposes a secure sum for round {proposed.round} over {len(proposed.clients)} clients on other terms than "
        "those of the run's settings. This client does not take part."
    )
