"""Settings that a lying server chooses so that secure sums hide nothing: a seed of the masks, the ring, endless attempts."""

import pytest
from fake_grid import tables
from lying_server import SUMS, Sum, agreed, grid

from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.secure import Identity, Terms, advertise
from sketchfed.secure.dealing import self_commitment
from sketchfed.secure.keys import Advertised, public_key
from sketchfed.secure.states import Joined
from sketchfed.seeds import SecretSeed
from sketchfed.wire import pack, unpack

pytestmark = pytest.mark.usefixtures("in_a_run")
V, KNOWN = 1, 5
"""The victim, and the seed that the server names."""


def guessed(terms: Terms, client: int) -> Joined:
    """The secrets of a client whose masks follow from the seed of the noise, as every party could compute them."""
    secret = SecretSeed.insecure(KNOWN).child("round", terms.round).child("masks", client)
    secret = secret.child("session", int.from_bytes(terms.session[:8], "little"))
    return advertise(terms, client, Identity(bytes(32)), secret)[0]


def test_a_seed_of_the_noise_that_the_server_names_gives_no_masks_away():
    """A node demands secure sums. The server names a seed for the noise, and computes a client's secrets from it."""
    privacy = {**SUMS["privacy"], "insecure_noise_seed": KNOWN}
    engine = agreed(grid(secure=True), algorithm={"name": "fedavg"}, privacy=privacy, secure={})
    terms = Sum(engine).terms
    replies = engine.ask(dict.fromkeys(range(3), pack(terms.packet)), "keys")
    shown = Advertised.from_bytes(unpack(replies[V]).arrays["body"].numpy().tobytes())
    own = guessed(terms, V)
    assert public_key(own.mask_key) != shown.mask, "the server knows the key of the victim's masks with others"
    assert self_commitment(terms, V, own.self_seed) != shown.seed, "the server knows the seed of the victim's own mask"


def ring_of(size: int) -> tuple[int, ...]:
    """The order of the clients on the ring of round 1 with a sketch of this size, for one draw of the run's randomness."""
    config = load_config(
        tables(
            algorithm={"name": "iterative"},
            sketch={"size": size},
            secure={"clip": 1.0, "neighbours": 42, "survivors": 0.9},
            data={"name": "given", "clients": 100},
        )
        | {"joint": "5" * 32}
    )
    protection = config.protection(dim=43, sizes=(10,) * 100)
    (terms,) = protection.terms(config.shared_seed, 0, 1)
    return terms._ring


def test_a_size_that_is_chosen_after_the_draw_moves_nobody_on_the_ring():
    """The sketch is agreed on after the draw. A server could else try sizes until accomplices sit around its victim."""
    assert len({ring_of(size) for size in range(2, 40)}) == 1
    assert ring_of(2) != tuple(range(100))


@pytest.mark.parametrize("attempts", [21, 10**9])
def test_endless_attempts_at_a_round_are_refused_from_the_number(attempts):
    """A client compares what is proposed with the terms of every attempt, so a billion of them would keep it busy for ever."""
    with pytest.raises(InputError, match=r"secure.attempts must be from 1 to 20"):
        load_config(tables(secure={"clip": 1.0, "attempts": attempts}))
