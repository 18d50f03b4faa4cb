"""What every codec must do with vectors: means, errors that were foretold, error feedback, sums, and what it refuses."""

import math
from dataclasses import fields, replace

import pytest
import torch

from codec_variants import DIM, REGULAR, SEED, SPATIAL, VARIANTS, codec_of, encoded, every_codec, vectors
from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs import CODECS, Codec
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.errors import InputError, SketchfedError, WireError
from sketchfed.wire import Packet, pack

NOT_QUITE = ("dense, float16", "dense, bfloat16", "rand_k_spatial, R = current", "rand_proj_spatial, R = current")
"""Nearest rounding, and a decoder that looks twice at the same packets: biased, but by so little that one may not care."""

NOT_RANDOM = ("top_k", "sign", "wangni, all numbers")


def learned(codec: Codec, x: torch.Tensor) -> torch.Tensor | None:
    """What the codec keeps of an earlier round."""
    return codec.learn(encoded(codec, x, SEED.child("before")), SEED.child("before"))


def relative(error: torch.Tensor, x: torch.Tensor) -> float:
    """A length in root mean square lengths of some vectors."""
    return float(error.norm() / x.square().sum(-1).mean().sqrt())


# Means ----------------------------------------------------------------------------------------------------------------


@every_codec
def test_packets_survive_the_wire_and_decode_to_a_mean(variant):
    codec, x = codec_of(variant), vectors()
    mean = codec.decode(encoded(codec, x), SEED)
    assert (mean.shape, mean.dtype) == ((DIM,), torch.float32)
    assert torch.equal(mean, codec.decode([codec.encode(row, SEED, client) for client, row in enumerate(x)], SEED))


@every_codec
def test_encoding_leaves_the_vector_alone(variant):
    codec, x = codec_of(variant), vectors(1)[0]
    before = x.clone()
    codec.decode([codec.encode(x, SEED)], SEED)
    assert torch.equal(x, before)


@every_codec
def test_a_vector_need_not_be_contiguous_float32(variant):
    codec, x = codec_of(variant), vectors(1)[0]
    decoded = codec.decode([codec.encode(x, SEED)], SEED)
    for other in (x.double(), torch.stack([x, x], dim=1)[:, 0]):
        assert torch.allclose(codec.decode([codec.encode(other, SEED)], SEED), decoded, atol=1e-4)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_the_dense_mean_is_exact(size):
    codec, x = codec_of("dense"), vectors(size)
    assert torch.allclose(codec.decode(encoded(codec, x), SEED), x.double().mean(0).float(), atol=1e-6)


@every_codec
def test_zeros_arrive_as_zeros(variant):
    codec = codec_of(variant)
    assert torch.equal(codec.decode(encoded(codec, torch.zeros(3, DIM)), SEED), torch.zeros(DIM))


@pytest.mark.parametrize("variant", [name for name in VARIANTS if codec_of(name).unbiased and name not in NOT_QUITE])
def test_the_decoded_mean_is_unbiased(variant):
    """Along six directions, from packets of one client each and from packets of several.

    False alarm below 1.2e-5 a variant, by Student's t.
    """
    codec, x = codec_of(variant), vectors(3)
    directions = torch.cat([torch.randn(5, DIM, generator=torch.Generator().manual_seed(2)), torch.eye(DIM)[[17]]])
    knowledge = learned(codec, x)
    apart, together = [], []
    for trial in range(120):
        seed = PublicSeed(1).child("trial", trial)
        packets = [codec.encode(row, seed, client) for client, row in enumerate(x)]
        apart.append(directions @ codec.decode(packets, seed, knowledge))
        if codec.additive:
            pair = replace(codec.encode(x[0] + x[1], seed, 0), clients=2)
            together.append(directions @ codec.decode([pair, packets[2]], seed))
    for estimates in filter(None, (apart, together)):
        for samples, expected in zip(torch.stack(estimates).T, directions @ x.mean(0), strict=True):
            low, high = mean_interval(samples, false_alarm=1e-6)
            assert low - 1e-5 <= float(expected) <= high + 1e-5


@every_codec
def test_the_order_of_packets_does_not_matter(variant):
    codec, x = codec_of(variant), vectors()
    packets = encoded(codec, x)
    assert torch.allclose(codec.decode(packets[::-1], SEED), codec.decode(packets, SEED), atol=1e-5)


@every_codec
def test_clients_need_not_be_numbered_from_zero(variant):
    codec, x = codec_of(variant), vectors(2)
    packets = [codec.encode(row, SEED, client) for row, client in zip(x, (3, 2**40), strict=True)]
    assert torch.isfinite(codec.decode(packets, SEED)).all()


@every_codec
def test_equal_seeds_and_clients_give_equal_bytes(variant):
    x = vectors(1)[0]
    assert pack(codec_of(variant).encode(x, SEED, 3)) == pack(codec_of(variant).encode(x, SEED, 3))


@every_codec
def test_what_is_random_differs_between_rounds(variant):
    codec, x = codec_of(variant), vectors(1)[0]
    one, other = (codec.decode([codec.encode(x, seed)], seed) for seed in (SEED, SEED.child("next")))
    assert torch.equal(one, other) == (variant in NOT_RANDOM or codec.name == "dense")


# Errors that are foretold ---------------------------------------------------------------------------------------------


def foretold(variant: str) -> bool:
    return codec_of(variant, clients=4).mse(1.0) is not None


@pytest.mark.parametrize("shared", [0.0, 1.5], ids=["uncorrelated", "correlated"])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if foretold(name)])
def test_the_mean_square_error_is_the_one_foretold(variant, shared):
    """For vectors with that very R. False alarm below 1e-6, by Student's t, and 3 % for formulas that are limits of large dim.

    128 numbers, as fast transforms need not fill them up; what a decoder would estimate, it is told.
    """
    noise = torch.randn(5, 128, generator=torch.Generator().manual_seed(3))
    x = shared * noise[0] + torch.tensor([0.5, 1, 1, 2])[:, None] * noise[1:]
    total = float(x.square().sum())
    correlation = float(x.sum(0).square().sum()) / total - 1
    believed = VARIANTS[variant][1].get("correlation", "estimated")
    told = {"correlation": correlation} if VARIANTS[variant][0] in SPATIAL and believed in ("estimated", "current") else {}
    codec = codec_of(variant, dim=128, clients=4, **told)
    errors = []
    for trial in range(120):
        seed = PublicSeed(2).child("trial", trial)
        packets = [codec.encode(row, seed, client) for client, row in enumerate(x)]
        errors.append(float((codec.decode(packets, seed) - x.mean(0)).square().sum()))
    low, high = mean_interval(errors, false_alarm=1e-6)
    expected = codec.mse(total, correlation)
    assert low <= 1.03 * expected + 1e-9
    assert 0.97 * expected <= high


@every_codec
def test_a_correlation_that_no_vectors_have_is_refused(variant):
    codec = codec_of(variant, clients=4)
    if foretold(variant) and codec.name != "dense":
        for impossible in (-1.1, 3.1):
            with pytest.raises(InputError, match="correlation of 4 vectors lies from −1 to 3"):
                codec.mse(1.0, impossible)


# Error feedback -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [*REGULAR, "sketched, 1 bits", "top_k, one bit"])
def test_with_error_feedback_everything_gets_across(variant):
    """What the server applied so far has the right mean, up to what clients still owe, and they never owe much.

    An unbiased codec loses at most 1 − δ of what it is to send, in mean squares, with δ = `shrinkage`; so a client that has the
    same vector x in every round owes at most 2√(1 − δ)/δ·‖x‖ (Karimireddy et al. 2019, Lemma 3), for which 3/δ stands here.
    Biased ones do not say how much they lose; they are allowed five times as much, and more time. Joint decoders apply what
    clients count as sent on average only, so the mean may be off by twice as much as is owed.
    """
    codec, x = codec_of(variant), vectors(3)
    allowed, rounds = (3 / codec.shrinkage, 100) if codec.unbiased else (15 / codec.shrinkage, 250)
    memories: list[torch.Tensor | None] = [None] * len(x)
    applied, knowledge = torch.zeros(DIM), None
    for number in range(rounds):
        seed = PublicSeed(3).child("round", number)
        packets = []
        for client, row in enumerate(x):
            packet, memories[client] = encode_with_memory(codec, row, memories[client], seed, client)
            packets.append(packet)
        applied += codec.shrinkage * codec.decode(packets, seed, knowledge)
        knowledge = codec.learn(packets, seed, knowledge)
        assert all(relative(memory, x) <= allowed for memory in memories), f"round {number}"
    assert relative(applied / rounds - x.mean(0), x) <= 2 * allowed / rounds


# Sums -----------------------------------------------------------------------------------------------------------------


def summed(packets: list[Packet]) -> Packet:
    """One packet for several clients, as a secure sum makes it: arrays are added, and nothing else is looked at."""
    arrays = {name: sum(packet.arrays[name] for packet in packets) for name in packets[0].arrays}
    return replace(packets[0], arrays=arrays, clients=len(packets))


@every_codec
def test_additive_codecs_decode_sums_of_packets_and_others_refuse_them(variant):
    codec, x = codec_of(variant), vectors(5)
    packets = encoded(codec, x)
    if codec.additive:
        parts = [summed(packets[:3]), packets[3], packets[4]]
        assert torch.allclose(codec.decode(parts, SEED), codec.decode(packets, SEED), atol=1e-5)
        assert torch.allclose(codec.decode([summed(packets)], SEED), codec.decode(packets, SEED), atol=1e-5)
        return
    several = replace(packets[0], clients=2)
    for refused in (lambda: codec.decode([several], SEED), lambda: codec.check(several, 0)):
        with pytest.raises(WireError, match=f"stands for 2 clients, but packets of codec '{codec.name}' cannot be added"):
            refused()


# What cannot be -------------------------------------------------------------------------------------------------------


@every_codec
def test_what_cannot_be_encoded_is_refused(variant):
    codec = codec_of(variant)
    for bad in (torch.ones(DIM + 1), torch.ones(1, DIM), torch.ones(DIM - 1), torch.tensor(1.0)):
        with pytest.raises(InputError, match=f"made for vectors of {DIM} numbers, got shape"):
            codec.encode(bad, SEED)
    for bad in (torch.nan, torch.inf):
        with pytest.raises(SketchfedError, match=r"NaN or infini|has larger ones"):
            codec.encode(torch.full((DIM,), bad), SEED)
    with pytest.raises(InputError, match="needs at least one packet"):
        codec.decode([], SEED)


@every_codec
def test_numbers_that_make_no_codec_are_refused(variant):
    for name in ("dim", "clients", *({"size"} & set(VARIANTS[variant][1]))):
        for bad in (0, -1, 1.5, True):
            with pytest.raises(InputError, match=f"{name} must be a positive integer, got {bad}"):
                codec_of(variant, **{name: bad})
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="norm_bound must be a positive number"):
            codec_of(variant, norm_bound=bad)


@pytest.mark.parametrize("name", [name for name in CODECS if "size" in {field.name for field in fields(CODECS[name])}])
def test_a_size_above_dim_is_refused(name):
    with pytest.raises(InputError, match=rf"size 97 exceeds dim 96: codec '{name}' .* Use\s+size <= 96"):
        codec_of(name, size=DIM + 1)
    assert codec_of(name, size=DIM).decode(encoded(codec_of(name, size=DIM), vectors(2)), SEED).shape == (DIM,)
