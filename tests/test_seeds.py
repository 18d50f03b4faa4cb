import copy
import io
import json

import numpy as np
import pytest
import torch

import sketchfed
from odds import uniformity
from sketchfed import PublicSeed, SecretSeed
from sketchfed.errors import InputError
from sketchfed.kernels import philox
from sketchfed.seeds import SecretStream, philox4x32, secret_bytes

# The rows "philox4x32 10" of kat_vectors in Random123 (Salmon et al. 2011): counter, key, output.
KNOWN_ANSWERS = [
    ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers_in_numpy_numba_and_torch(counter, key, answer):
    assert philox4x32(np.array(counter, np.uint32), key).tolist() == answer
    numba_words = philox.philox(*(np.uint64(word) for word in (*counter, *key)))
    assert [int(word) for word in numba_words] == answer
    stream = np.array([*key, *counter[2:]], np.uint32)
    assert philox.words_twin(stream, torch.tensor(counter[0]), counter[1]).tolist() == answer


def test_a_stream_is_the_same_in_numpy_numba_and_torch():
    seed = PublicSeed(7).child("round", 3).child("client", 12)
    words = seed.words(4000).tolist()
    assert philox.words(seed.stream, 4000).tolist() == words
    assert philox.words_twin(seed.stream, torch.arange(1000)).reshape(-1).tolist() == words


def test_a_stream_is_frozen_for_all_time():
    assert PublicSeed(7).words(4).tolist() == [595341931, 3489654407, 1417745421, 1681884621]
    assert PublicSeed(7).child("round", 3).child("client", 12).words(2, start=10**12).tolist() == [1915788119, 1359457703]


@pytest.mark.parametrize("start", [0, 1, 3, 4, 17, 2**32 * 4 - 2, 2**40])
def test_words_can_be_read_from_anywhere(start):
    seed = PublicSeed(1)
    assert seed.words(9, start=start).tolist() == [int(seed.words(1, start=start + i)[0]) for i in range(9)]


def test_children_differ_by_label_index_and_parent():
    root = PublicSeed(7)
    family = [
        root,
        PublicSeed(8),
        root.child("a"),
        root.child("b"),
        root.child("a", 1),
        root.child("a").child("a"),
        root.child("aa"),
    ]
    assert len({seed.to_bytes() for seed in family}) == len(family)
    assert root.child("round", 3) == PublicSeed(7).child("round", 3)


def test_bytes_carry_a_public_seed():
    seed = PublicSeed(7).child("round", 3)
    again = PublicSeed.from_bytes(seed.to_bytes())
    assert again == seed == copy.deepcopy(seed)
    assert hash(again) == hash(seed)
    assert again.words(8).tolist() == seed.words(8).tolist()


def test_a_public_seed_says_where_it_comes_from():
    assert repr(PublicSeed(7).child("round", 3)) == "PublicSeed(7).child('round', 3)"
    with pytest.raises(AttributeError, match="never changes"):
        PublicSeed(7)._state = b""


def test_streams_are_uniform():
    """χ² over the 256 values of each byte of a word; false alarm below 4e-6."""
    octets = PublicSeed(11).words(2**18).view(np.uint8).reshape(-1, 4)
    assert min(uniformity(np.bincount(octets[:, lane], minlength=256)) for lane in range(4)) > 1e-6


@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "7", True, None])
def test_a_public_seed_that_is_no_small_integer_is_refused(value):
    with pytest.raises(InputError, match="integer from 0"):
        PublicSeed(value)


def test_bad_children_and_bad_bytes_are_refused():
    for label in ("", 3, None):
        with pytest.raises(InputError, match="label"):
            PublicSeed(7).child(label)
    for index in (-1, 2**64, 0.5, True):
        with pytest.raises(InputError, match="index"):
            PublicSeed(7).child("round", index)
    with pytest.raises(InputError, match="16 bytes"):
        PublicSeed.from_bytes(b"short")
    with pytest.raises(InputError, match="negative"):
        PublicSeed(7).words(-1)


def test_secret_seeds_are_drawn_anew_and_never_shown():
    first, second = SecretSeed(), SecretSeed()
    assert secret_bytes(first, 32) != secret_bytes(second, 32)
    assert repr(first) == str(first) == "SecretSeed(hidden)"
    assert first._state.hex() not in f"{first!r} {first.child('noise')!r}"


def test_a_secret_seed_is_not_serialised_by_anything():
    seed = SecretSeed()
    for attempt in (copy.copy, copy.deepcopy):
        with pytest.raises(InputError, match="never serialised"):
            attempt(seed)
    with pytest.raises(InputError, match="never serialised"):
        torch.save(seed, io.BytesIO())
    with pytest.raises(TypeError):
        json.dumps(seed)
    assert not hasattr(seed, "to_bytes")


def test_secrets_derive_reproducible_children_in_their_own_process():
    seed = SecretSeed()
    assert secret_bytes(seed.child("noise", 1), 64) == secret_bytes(seed.child("noise", 1), 64)
    assert secret_bytes(seed.child("noise", 1), 64) != secret_bytes(seed.child("noise", 2), 64)
    assert secret_bytes(seed, 100)[:50] == secret_bytes(seed, 50)


@pytest.mark.parametrize("public", [PublicSeed(7), 7, b"0" * 32, None])
def test_noise_and_masks_come_from_secrets_only(public):
    with pytest.raises(InputError, match="SecretSeed"):
        secret_bytes(public, 16)


def test_a_public_and_a_secret_seed_are_never_equal_or_related():
    assert not isinstance(SecretSeed(), PublicSeed)
    assert not isinstance(PublicSeed(7), SecretSeed)
    assert SecretSeed() != PublicSeed(7)
    assert sketchfed.SecretSeed is SecretSeed


def test_an_insecure_secret_is_repeatable_and_says_so():
    first, again = SecretSeed.insecure(7), SecretSeed.insecure(7)
    assert secret_bytes(first, 64) == secret_bytes(again, 64) != secret_bytes(SecretSeed.insecure(8), 64)
    assert repr(first) == "SecretSeed.insecure(7)"
    child = first.child("client", 3).child("noise")
    assert repr(child) == "SecretSeed.insecure(7).child('client', 3).child('noise', 0)"
    assert first.is_insecure
    assert child.is_insecure
    assert not SecretSeed().is_insecure
    assert not SecretSeed().child("noise").is_insecure
    with pytest.raises(InputError, match="never serialised"):
        copy.copy(first)


def test_an_insecure_secret_is_related_to_no_public_seed():
    assert PublicSeed(7).to_bytes() not in secret_bytes(SecretSeed.insecure(7), 1024)
    assert PublicSeed(7).to_bytes() not in SecretSeed.insecure(7)._state


@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "7", True, None])
def test_an_insecure_secret_is_made_of_a_small_integer(value):
    with pytest.raises(InputError, match="integer from 0"):
        SecretSeed.insecure(value)


def test_a_secret_stream_goes_on_where_it_stopped():
    secret = SecretSeed()
    stream = SecretStream(secret)
    parts = stream.read(3) + stream.read(0) + stream.read(100) + stream.words(5).astype("<u4").tobytes()
    assert parts == secret_bytes(secret, 123)
    with pytest.raises(InputError, match="SecretSeed"):
        SecretStream(PublicSeed(7))


def test_secret_streams_are_uniform():
    """χ² over the 256 values of a byte; false alarm 1e-6."""
    octets = np.frombuffer(secret_bytes(SecretSeed.insecure(7), 2**20), np.uint8)
    assert uniformity(np.bincount(octets, minlength=256)) > 1e-6
