from dataclasses import fields, replace

import pytest
import torch

from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, Codec, budget, make_codec
from sketchfed.codecs.budget import fit, packet_bytes
from sketchfed.errors import InputError, UnknownNameError
from sketchfed.wire import pack

DIM = 1000


def option_default(name: str, option: str) -> object:
    return next((field.default for field in fields(CODECS[name]) if field.name == option), None)


SIZED = [name for name in CODECS if any(field.name == "size" for field in fields(CODECS[name]))]


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("allowed", [95, 187, 700, 2_345])
def test_what_is_chosen_fits_and_one_number_more_would_not(name, allowed):
    codec = fit(name, dim=DIM, budget=allowed, clients=20)
    assert (type(codec), codec.dim, codec.clients) == (CODECS[name], DIM, 20)
    assert packet_bytes(codec) <= allowed
    if codec.size is not None and codec.size < DIM:
        assert packet_bytes(replace(codec, size=codec.size + 1)) > allowed


@pytest.mark.parametrize("name", CODECS)
def test_with_room_for_everything_everything_is_sent(name):
    codec = fit(name, dim=DIM, budget=10 * DIM, clients=20)
    assert getattr(codec, "size", None) in (None, DIM)
    if hasattr(codec, "bits"):
        assert packet_bytes(codec) <= 10 * DIM
        wider = [bits for bits in range(codec.bits + 1, 33) if can_have(codec, bits)]
        assert all(packet_bytes(replace(codec, bits=bits)) > 10 * DIM for bits in wider)


def can_have(codec: Codec, bits: int) -> bool:
    try:
        replace(codec, bits=bits)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("name", SIZED)
def test_bits_that_are_given_stay(name):
    if option_default(name, "bits") is None:
        pytest.skip("has no bits")
    codec = fit(name, dim=DIM, budget=300, clients=20, bits=8)
    assert codec.bits == 8
    assert 280 <= packet_bytes(codec) <= 300


@pytest.mark.parametrize("name", CODECS)
def test_a_budget_below_the_smallest_packet_is_refused_with_what_that_takes(name):
    with pytest.raises(
        InputError, match=rf"codec '{name}' cannot send less than .* takes [\d,]+ bytes; the budget is 10\. Raise"
    ):
        fit(name, dim=DIM, budget=10, clients=20)


@pytest.mark.parametrize(
    "name", [name for name in SIZED if option_default(name, "size") is None and option_default(name, "bits")]
)
def test_quantisers_get_all_coordinates_before_more_bits(name):
    """Where all fit in the fewest bits, the most bits that fit; where not, as many coordinates as do in the fewest."""
    codec, less = (fit(name, dim=DIM, budget=allowed, clients=20) for allowed in (700, 100))
    assert codec.size == DIM
    assert not can_have(codec, codec.bits + 1) or packet_bytes(replace(codec, bits=codec.bits + 1)) > 700
    assert less.size < DIM
    assert not can_have(less, less.bits - 1)


def test_all_coordinates_may_fit_where_fewer_do_not():
    """Who sent all coordinates need not be known, so the packet does not name a client."""
    everything = packet_bytes(make_codec("sign", dim=DIM))
    assert packet_bytes(make_codec("sign", dim=DIM, size=DIM - 1)) > everything
    assert fit("sign", dim=DIM, budget=int(everything)).size == DIM


def test_the_length_is_that_of_a_packed_packet_without_seed_and_sender():
    codec = make_codec("sketched", dim=DIM, size=10)
    bare = codec.bare(codec.encode(torch.ones(DIM), PublicSeed(3), 5))
    assert (bare.seed, dict(bare.scalars)) == (None, {})
    assert packet_bytes(codec) == len(pack(bare))


def test_options_are_those_of_the_codec():
    codec = fit("sketched", dim=DIM, budget=300, family="count", bits=4)
    assert (codec.family, codec.bits) == ("count", 4)
    with pytest.raises(InputError, match="has no option 'famly'"):
        fit("sketched", dim=DIM, budget=300, famly="count")
    with pytest.raises(InputError, match="Leave out size"):
        fit("sketched", dim=DIM, budget=300, size=3)
    with pytest.raises(UnknownNameError, match="Did you mean 'sketched'"):
        fit("sketchd", dim=DIM, budget=300)


@pytest.mark.parametrize("wrong", [0, -5, 2.5, True, "300"])
def test_a_budget_is_a_positive_whole_number(wrong):
    with pytest.raises(InputError, match="a budget must be a positive number of bytes per packet, got"):
        fit("sketched", dim=DIM, budget=wrong)


def test_it_starts_with_the_smallest_size_that_a_codec_takes():
    """Two blocks of an SRHT need a row each."""
    codec = fit("sketched", dim=DIM, budget=70, options=(("block", 512),))
    assert codec.size >= 2
    with pytest.raises(InputError, match=r"cannot send less than 2 numbers of 32 bits"):
        fit("sketched", dim=DIM, budget=50, options=(("block", 512),))


@pytest.mark.parametrize("name", SIZED)
def test_few_encodings_are_needed_even_for_large_vectors(name, monkeypatch):
    tried = []
    measure = budget.packet_bytes
    monkeypatch.setattr(budget, "packet_bytes", lambda codec, like: tried.append(codec) or measure(codec, like))
    fit(name, dim=20_000, budget=1_900, clients=20)
    assert len(tried) <= 15


@pytest.mark.parametrize(
    "cost", [lambda size: 40 + size**0.8, lambda size: 40 + size**1.3, lambda size: 40 + (size > 700) * 900]
)
def test_costs_need_not_be_linear(cost):
    calls = []
    found = budget._most(1, 10_000, 400, lambda size: calls.append(size) or cost(size))
    assert cost(found) <= 400 < cost(found + 1)
    assert len(calls) <= 25


def test_packets_can_be_measured_on_a_vector_that_is_like_those_to_come():
    spike = torch.zeros(DIM)
    spike[3] = 1
    assert fit("sketched", dim=DIM, budget=200, like=spike) == fit("sketched", dim=DIM, budget=200)
    if "wangni" in CODECS:  # sends few coordinates of a vector that has few
        assert fit("wangni", dim=DIM, budget=200, like=spike).size > fit("wangni", dim=DIM, budget=200).size
