"""Masks: sums are exact at every width, and what is masked looks like nothing."""

import numpy as np
import pytest
import torch
from cohorts import Cohort, small_terms
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from odds import uniformity
from sketchfed.errors import InputError
from sketchfed.secure.client import NO_PREMISE, pair_key, self_key
from sketchfed.secure.keys import KeyAgreement
from sketchfed.secure.masks import CHUNK, add_masks, from_words, to_words, word_for
from sketchfed.wire import unpack


@pytest.mark.parametrize("bits", range(8, 33))
def test_sums_are_exact_at_every_width(bits):
    cohort = Cohort(small_terms(4, size=33, bits=bits))
    total, survivors = cohort.run()
    assert total.dtype == torch.int64
    assert torch.equal(total, cohort.expected(survivors))


@pytest.mark.parametrize(("bits", "width"), [(8, 1), (9, 2), (16, 2), (17, 4), (32, 4)])
def test_the_smallest_word_that_holds_the_bits_is_used(bits, width):
    assert word_for(bits).itemsize == width


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_masks_are_the_key_stream_from_its_beginning_however_it_is_cut(bits):
    width = bits // 8
    size = (2 * CHUNK + 24) // width
    keys = [bytes([number]) * 32 for number in range(3)]
    streams = [
        np.frombuffer(
            Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(size * width)), word_for(bits)
        )
        for key in keys
    ]
    words = np.arange(size).astype(word_for(bits))
    expected = words + streams[0] + streams[1] - streams[2]
    add_masks(words, added=keys[:2], subtracted=keys[2:])
    assert np.array_equal(words, expected)


def test_what_is_added_and_subtracted_cancels():
    words = to_words(torch.arange(1_000), 20)
    add_masks(words, added=[b"a" * 32], subtracted=[b"b" * 32])
    assert not np.array_equal(words, np.arange(1_000))
    add_masks(words, added=[b"b" * 32], subtracted=[b"a" * 32])
    assert torch.equal(from_words(words, 20), torch.arange(1_000))


@pytest.mark.parametrize(
    ("values", "saying"),
    [
        (torch.zeros(4), "int64"),
        (torch.zeros(5, dtype=torch.int64), r"shape \(4,\)"),
        (torch.tensor([0, 0, 0, -1]), r"% 2\*\*16"),
        (torch.tensor([0, 0, 0, 2**16]), r"% 2\*\*16"),
        ([1, 2, 3, 4], "list"),
    ],
)
def test_values_that_are_not_integers_of_the_sum_are_refused(values, saying):
    cohort = Cohort(small_terms(4))
    server = cohort.server()
    for _ in range(2):
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    with pytest.raises(InputError, match=saying):
        cohort.clients[0].answer(unpack(server.requests[0]), values)


def masked_view(count, *, size, bits, target):
    """All masked values of a run in which everybody adds zeros but the target, which adds a pattern; and the cohort."""
    cohort = Cohort(small_terms(count, size=size, bits=bits))
    for client in cohort.values:
        cohort.values[client] = torch.zeros(size, dtype=torch.int64)
    cohort.values[target] = torch.arange(size) % 3
    server = cohort.server()
    states = {}
    while server.stage in ("keys", "shares", "masked"):
        states = {client: secure.state for client, secure in cohort.clients.items()}
        server.receive(cohort.ask(server.stage, server.requests, gone=lambda *_: False))
    return cohort, states


@pytest.mark.parametrize("bits", [8, 13, 16, 32])
def test_masked_values_look_uniform_to_a_server_that_knows_all_masks_but_one(bits):
    """χ² on 256 cells of the highest and of the lowest byte: false alarm 1e-9 for each of 2·(4 + 2) tests of a width.

    The server is given every key of the target's masks but that of one neighbour, then every one but its own mask's.
    What it can subtract leaves it with 40,000 values that cannot be told from uniform ones, though the values masked repeat
    0, 1, 2; without any mask unknown it reads them off.
    """
    target, size = 1, 40_000
    cohort, states = masked_view(4, size=size, bits=bits, target=target)
    terms, state = cohort.terms, states[target]
    keys = {
        peer: pair_key(KeyAgreement(state.mask_key), state.peers[peer].mask, state.transcript, target, peer, NO_PREMISE)
        for peer in terms.neighbours_of(target)
    }
    own = self_key(state.self_seed, state.transcript, target)
    seen = unpack(cohort.replied["masked"][target]).arrays["values"].values

    def opened(unknown):
        words = to_words(seen, bits)
        added = [key for peer, key in keys.items() if target > peer and peer != unknown]
        subtracted = [key for peer, key in keys.items() if target < peer and peer != unknown]
        add_masks(words, added=added, subtracted=subtracted + [own] * (unknown != "own"))
        return from_words(words, bits)

    for view in (seen, *(opened(peer) for peer in keys), opened("own")):
        for cells in (view >> (bits - 8), view & 255):
            assert uniformity(torch.bincount(cells, minlength=256).numpy()) > 1e-9
    assert torch.equal(opened(None), cohort.values[target])


def test_masked_values_of_all_clients_look_uniform_together():
    """χ² over 30 clients' masked zeros at 16 bits: false alarm 1e-9. Only their sum is zero."""
    cohort, _ = masked_view(30, size=3_000, bits=16, target=0)
    views = torch.stack([unpack(reply).arrays["values"].values for reply in cohort.replied["masked"].values()])
    assert uniformity(torch.bincount((views >> 8).reshape(-1), minlength=256).numpy()) > 1e-9
    pairs = (views[:-1] + views[1:]) % 2**16
    assert uniformity(torch.bincount((pairs >> 8).reshape(-1), minlength=256).numpy()) > 1e-9


def test_a_hundred_clients_with_ten_thousand_coordinates_are_summed_exactly():
    cohort = Cohort(small_terms(100, size=10_000, bits=16))
    total, survivors = cohort.run()
    assert len(survivors) == 100
    assert torch.equal(total, cohort.expected(survivors))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_clients_with_a_hundred_thousand_coordinates_are_summed_exactly_despite_dropouts():
    terms = small_terms(1_000, size=100_000, bits=20)
    cohort = Cohort(terms)
    leaving = {client: ("shares", "masked", "unmask")[client % 3] for client in range(0, 1_000, 20)}
    order = ("keys", "shares", "masked", "consent", "unmask")
    total, survivors = cohort.run(lambda s, c: c in leaving and order.index(s) >= order.index(leaving[c]))
    assert len(survivors) == 1_000 - sum(stage != "unmask" for stage in leaving.values())
    assert torch.equal(total, cohort.expected(survivors))
