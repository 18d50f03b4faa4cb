"""What every codec must do with vectors: means, errors that were foretold, error feedback, sums, and what it refuses."""

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import count, islice

import pytest
import torch
from torch import Tensor

from sketchfed.codecs import Codec
from sketchfed.codecs.feedback import encode_with_memory
from sketchfed.errors import InputError, SketchfedError, WireError
from sketchfed.seeds import PublicSeed
from sketchfed.testing.codec_packets import CodecPackets
from sketchfed.testing.codec_vectors import SEED, TRIALS, CodecSuite, encoded, summed, vectors
from sketchfed.testing.odds import mean_interval, staged_interval, trials_for
from sketchfed.testing.suite import only, other_device
from sketchfed.wire import pack

SCALE = 0.1
"""The relative error of a decoded mean's length that is found."""
ROUNDS, BIASED_ROUNDS = 100, 150
"""Rounds of error feedback, for unbiased codecs and for others."""


def _foretold(codec: Codec) -> bool:
    return replace(codec, clients=4).mse(1.0) is not None


def _additive(codec: Codec) -> bool:
    return (code := codec.linear(SEED)) is not None and code.additive


def _along(mean: Tensor) -> Tensor:
    """The direction along which an estimate of the mean has length 1."""
    return (mean / mean.square().sum())[None]


def _directions(dim: int) -> Tensor:
    """Five random directions, and one coordinate."""
    return torch.cat([torch.randn(5, dim, generator=torch.Generator().manual_seed(2)), torch.eye(dim)[[min(17, dim - 1)]]])


def _estimates(estimate: Callable[[PublicSeed], Tensor], most: int) -> Tensor:
    """Estimates along directions, one trial each: as many as the first direction needs to find a scale that is 10 % off."""
    seeds = (PublicSeed(1).child("trial", trial) for trial in count())
    found = [estimate(seed) for seed in islice(seeds, TRIALS)]
    needed = trials_for([float(each[0]) for each in found], found=SCALE, false_alarm=1e-6)
    return torch.stack(found + [estimate(seed) for seed in islice(seeds, min(needed, most) - TRIALS)])


def _relative(error: Tensor, x: Tensor) -> float:
    """A length in root mean square lengths of some vectors."""
    return float(error.norm() / x.square().sum(-1).mean().sqrt())


class CodecMeans(CodecSuite):
    """What is encoded arrives."""

    def test_packets_survive_the_wire_and_decode_to_a_mean(self, codec: Codec) -> None:
        """`decode` returns the mean as float32 of shape `(dim,)`, equal to the last bit with and without the wire between."""
        x = vectors(codec)
        mean = codec.decode(encoded(codec, x), SEED)
        assert (mean.shape, mean.dtype) == ((codec.dim,), torch.float32)
        assert torch.equal(mean, codec.decode([codec.encode(row, SEED, client) for client, row in enumerate(x)], SEED))

    def test_what_single_packets_decode_to_adds_up_unless_packets_are_decoded_together(self, codec: Codec) -> None:
        """Unless `joint`, the decoded mean is the mean of what each packet decodes to by itself, up to rounding."""
        x = vectors(codec)
        packets = encoded(codec, x)
        alone = torch.stack([codec.decode([packet], SEED) for packet in packets]).mean(0)
        if not codec.joint:
            assert torch.allclose(codec.decode(packets, SEED), alone, atol=1e-4 * float(alone.abs().max()))

    def test_encoding_leaves_the_vector_alone(self, codec: Codec) -> None:
        """`encode` does not modify its input."""
        x = vectors(codec, 1)[0]
        before = x.clone()
        codec.decode([codec.encode(x, SEED)], SEED)
        assert torch.equal(x, before)

    def test_a_vector_need_not_be_contiguous_float32(self, codec: Codec) -> None:
        """`encode` takes float64 and non-contiguous vectors too. What decodes differs by rounding only."""
        x = vectors(codec, 1)[0]
        decoded = codec.decode([codec.encode(x, SEED)], SEED)
        for other in (x.double(), torch.stack([x, x], dim=1)[:, 0]):
            assert torch.allclose(codec.decode([codec.encode(other, SEED)], SEED), decoded, atol=1e-4)

    def test_a_vector_may_be_on_another_device(self, codec: Codec) -> None:
        """`encode` takes vectors on any device and mixes none. What decodes differs by rounding only.

        The device is pretended (`sketchfed.testing.devices`).
        """
        device, x = other_device(), vectors(codec)
        for client, row in enumerate(x):
            there, here = codec.encode(row.to(device), SEED, client), codec.encode(row, SEED, client)
            places = {array.device.type for array in there.arrays.values() if isinstance(array, Tensor)}
            assert places <= {"cpu"}, f"a packet has tensors on {places}, and packets are on the CPU"
            found, wanted = codec.decode([there], SEED), codec.decode([here], SEED)
            assert torch.allclose(found, wanted, atol=1e-4 * float(wanted.abs().max()))
        code = codec.linear(SEED)
        if code is not None:
            values = code.apply(x.to(device)).cpu()
            assert torch.allclose(values, code.apply(x), atol=1e-4)
            assert torch.allclose(code.adjoint(values.to(device)).cpu(), code.adjoint(values), atol=1e-4)

    def test_zeros_arrive_as_zeros(self, codec: Codec) -> None:
        """Zeros decode to zeros."""
        assert torch.equal(codec.decode(encoded(codec, torch.zeros(3, codec.dim)), SEED), torch.zeros(codec.dim))

    @only(lambda suite, codec: suite.unbiased(codec))
    def test_the_decoded_mean_is_unbiased(self, codec: Codec) -> None:
        """If `unbiased`, the decoded mean is right in expectation, from packets of one client each and from sums of them.

        Its length along the true mean, ⟨decoded, mean⟩/‖mean‖² = 1, is tried with as many trials, up to `most_trials`, as
        find a decoder that is 10 % too long or too short with probability 0.99. Six other directions are tried with the same
        trials: with 80 of them, a bias of 0.9 standard deviations is found with probability 0.99. False alarm below 1.4e-5 a
        codec, by Student's t.
        """
        x = vectors(codec, 3)
        directions = torch.cat([_along(x.mean(0)), _directions(codec.dim)])
        knowledge = codec.learn(encoded(codec, x, SEED.child("before")), SEED.child("before"))

        def apart(seed: PublicSeed) -> Tensor:
            packets = [codec.encode(row, seed, client) for client, row in enumerate(x)]
            return directions @ codec.decode(packets, seed, knowledge)

        def together(seed: PublicSeed) -> Tensor:
            pair = replace(codec.encode(x[0] + x[1], seed, 0), clients=2)
            return directions @ codec.decode([pair, codec.encode(x[2], seed, 2)], seed)

        for estimate in (apart, *((together,) if _additive(codec) else ())):
            samples = _estimates(estimate, self.most_trials(codec)).T
            expected = directions @ x.mean(0)
            low, high = staged_interval(samples[0], pilot=TRIALS, false_alarm=1e-6)
            assert low - 1e-5 <= 1.0 <= high + 1e-5, f"decodes {float(samples[0].mean()):.3g} times the mean"
            for values, wanted in zip(samples[1:], expected[1:], strict=True):
                low, high = mean_interval(values, false_alarm=1e-6)
                assert low - 1e-5 <= float(wanted) <= high + 1e-5

    def test_the_order_of_packets_does_not_matter(self, codec: Codec) -> None:
        """The order of the packets does not matter."""
        packets = encoded(codec, vectors(codec))
        assert torch.allclose(codec.decode(packets[::-1], SEED), codec.decode(packets, SEED), atol=1e-5)

    def test_clients_need_not_be_numbered_from_zero(self, codec: Codec) -> None:
        """Clients may have any numbers, such as 3 and 2^40."""
        packets = [codec.encode(row, SEED, client) for row, client in zip(vectors(codec, 2), (3, 2**40), strict=True)]
        assert torch.isfinite(codec.decode(packets, SEED)).all()

    def test_equal_seeds_and_clients_give_equal_bytes(self, codec: Codec) -> None:
        """All randomness comes from the seed and the client: equal ones give equal bytes, from equal codecs too."""
        x = vectors(codec, 1)[0]
        assert pack(codec.encode(x, SEED, 3)) == pack(replace(codec).encode(x, SEED, 3))

    def test_what_is_random_differs_between_rounds(self, codec: Codec) -> None:
        """What is drawn differs between rounds. A codec that draws nothing says so by `draws` of its test class."""
        x = vectors(codec, 1)[0]
        one, other = (codec.decode([codec.encode(x, seed)], seed) for seed in (SEED, SEED.child("next")))
        assert torch.equal(one, other) != self.draws(codec)


class CodecErrors(CodecSuite):
    """Mean square errors are as the codec's formula says."""

    @pytest.mark.parametrize("shared", [0.0, 1.5], ids=["uncorrelated", "correlated"])
    @only(lambda suite, codec: _foretold(codec))
    def test_the_mean_square_error_is_the_one_foretold(self, codec: Codec, shared: float) -> None:
        """`mse` returns the mean square error for vectors with that correlation, to within 3 %, or None if no formula exists.

        False alarm below 1e-6, by Student's t. 3 % are for formulas that are limits of large dim. The dim is a power of two, so
        that fast transforms need not fill vectors up; what a decoder would estimate, it is told. With 80 trials, a formula that
        is off by 0.9 standard deviations of the error is found with probability 0.99.
        """
        dim = 2 ** math.ceil(math.log2(codec.dim))
        noise = torch.randn(5, dim, generator=torch.Generator().manual_seed(3))
        x = shared * noise[0] + torch.tensor([0.5, 1, 1, 2])[:, None] * noise[1:]
        total = float(x.square().sum())
        correlation = float(x.sum(0).square().sum()) / total - 1
        codec = self.told(replace(codec, dim=dim, clients=4), correlation)
        errors = []
        for trial in range(TRIALS):
            seed = PublicSeed(2).child("trial", trial)
            packets = [codec.encode(row, seed, client) for client, row in enumerate(x)]
            errors.append(float((codec.decode(packets, seed) - x.mean(0)).square().sum()))
        low, high = mean_interval(errors, false_alarm=1e-6)
        expected = codec.mse(total, correlation)
        assert expected is not None
        assert low <= 1.03 * expected + 1e-9
        assert 0.97 * expected <= high

    @only(lambda suite, codec: _foretold(codec) and codec.name != "dense")
    def test_a_correlation_that_no_vectors_have_is_refused(self, codec: Codec) -> None:
        """`mse` refuses a correlation that no vectors have (`codecs.base.check_correlation`)."""
        for impossible in (-1.1, 3.1):
            with pytest.raises(InputError, match="correlation of 4 vectors must be from −1 to 3"):
                replace(codec, clients=4).mse(1.0, impossible)


class CodecFeedback(CodecSuite):
    """Error feedback makes up for what a codec loses."""

    def test_with_error_feedback_everything_gets_across(self, codec: Codec) -> None:
        """With `shrinkage`, error feedback is a contraction: what clients still owe stays bounded, and all the rest arrives.

        An unbiased codec loses at most 1 − δ of what it is to send, in mean squares, with δ = `shrinkage`; so a client that has
        the same vector x in every round owes at most 2√(1 − δ)/δ·‖x‖ (Karimireddy et al. 2019, Lemma 3), for which 3/δ stands
        here. Biased ones do not say how much they lose; they are allowed five times as much, and more time. Joint decoders
        apply what clients count as sent on average only, so the mean may be off by twice as much as is owed.
        """
        x = vectors(codec, 3)
        allowed, rounds = (3 / codec.shrinkage, ROUNDS) if codec.unbiased else (15 / codec.shrinkage, BIASED_ROUNDS)
        memories: list[Tensor | None] = [None] * len(x)
        applied, knowledge = torch.zeros(codec.dim), None
        for number in range(rounds):
            seed = PublicSeed(3).child("round", number)
            packets = []
            for client, row in enumerate(x):
                packet, memories[client] = encode_with_memory(codec, row, memories[client], seed, client)
                packets.append(packet)
            applied += codec.shrinkages * codec.decode(packets, seed, knowledge)
            knowledge = codec.learn(packets, seed, knowledge)
            assert all(_relative(memory, x) <= allowed for memory in memories if memory is not None), f"round {number}"
        assert _relative(applied / rounds - x.mean(0), x) <= 2 * allowed / rounds


class CodecSums(CodecSuite):
    """Sums of packets, and the linear code behind them."""

    def test_additive_codecs_decode_sums_of_packets_and_others_refuse_them(self, codec: Codec) -> None:
        """If `linear` returns a code that is shared and exact, sums of packets decode to the mean. Other codecs refuse sums."""
        packets = encoded(codec, vectors(codec, 5))
        if _additive(codec):
            parts = [summed(packets[:3]), packets[3], packets[4]]
            assert torch.allclose(codec.decode(parts, SEED), codec.decode(packets, SEED), atol=1e-5)
            assert torch.allclose(codec.decode([summed(packets)], SEED), codec.decode(packets, SEED), atol=1e-5)
            return
        several = replace(packets[0], clients=2)
        for refuse in (lambda: codec.decode([several], SEED), lambda: codec.check(several, 0)):
            with pytest.raises(WireError, match=f"stands for 2 clients, but packets of codec '{codec.name}' cannot be added"):
                refuse()

    @only(lambda suite, codec: codec.linear(SEED) is not None)
    def test_a_linear_code_is_what_packets_hold(self, codec: Codec) -> None:
        """The map of a linear code gives the numbers that a packet holds, and passes ⟨Ax, y⟩ = ⟨x, Aᵀy⟩.

        Numbers that are rounded are compared by `unbiased` alone.
        """
        x = vectors(codec, 1)[0]
        code = codec.linear(SEED, 3)
        assert code is not None
        values = code.apply(x)
        assert values.shape == (code.size,)
        y = torch.randn(code.size, generator=torch.Generator().manual_seed(4))
        scale = float(values.norm() * y.norm()) + 1
        assert abs(float(values @ y) - float(x @ code.adjoint(y))) <= 1e-4 * scale
        if code.exact:
            found = code.values(codec.encode(x, SEED, 3))
            assert torch.allclose(found, values, atol=1e-4 * float(values.abs().max()) + 1e-6)
        if code.additive:
            packet = code.packet(values)
            codec.check(packet if not codec.personal else packet.stamped(client=3), 3, SEED)


class CodecRefusals(CodecSuite):
    """What cannot be encoded, and codecs that cannot be."""

    def test_what_cannot_be_encoded_is_refused(self, codec: Codec) -> None:
        """Vectors of other shapes, NaN and infinity are refused with the reason, and so is a mean of no packets."""
        dim = codec.dim
        for bad in (torch.ones(dim + 1), torch.ones(1, dim), torch.ones(dim - 1), torch.tensor(1.0)):
            with pytest.raises(InputError, match=f"made for vectors of {dim:,} numbers, got shape"):
                codec.encode(bad, SEED)
        for value in (torch.nan, torch.inf):
            with pytest.raises(SketchfedError, match=r"NaN or infini|has larger ones"):
                codec.encode(torch.full((dim,), value), SEED)
        with pytest.raises(InputError, match="needs at least one packet"):
            codec.decode([], SEED)

    def test_numbers_that_make_no_codec_are_refused(self, codec: Codec) -> None:
        """A codec cannot be made with a `dim`, `size`, `clients` or `norm_bound` that makes no sense."""
        for name in ("dim", "clients", *(("size",) if getattr(codec, "size", None) is not None else ())):
            for bad in (0, -1, 1.5, True):
                with pytest.raises(InputError, match=f"{name} must be a positive integer, got {bad}"):
                    replace(codec, **{name: bad})  # type: ignore[arg-type]
        for bound in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(InputError, match="norm_bound must be a positive number"):
                replace(codec, norm_bound=bound)

    @only(lambda suite, codec: "size" in {field.name for field in fields(codec)})
    def test_a_size_above_dim_is_refused(self, codec: Codec) -> None:
        """`size` may be as large as `dim`, and not larger."""
        dim = codec.dim
        message = f"size {dim + 1:,} exceeds dim {dim:,}: codec '{codec.name}'"
        with pytest.raises(InputError, match=rf"{re.escape(message)} .* Use\s+size <= {dim:,}"):
            replace(codec, size=dim + 1)  # type: ignore[call-arg]
        whole = replace(codec, size=dim)  # type: ignore[call-arg]
        assert whole.decode(encoded(whole, vectors(whole, 2)), SEED).shape == (dim,)


class CodecConformance(CodecMeans, CodecErrors, CodecFeedback, CodecSums, CodecRefusals, CodecPackets):
    """All demands on a codec. `codecs` are yours, ready made; a dim from 64 to 512 keeps the suite quick."""
