"""Every registered codec, with several options, does what `sketchfed.testing` demands of a codec."""

from dataclasses import fields, replace
from random import Random
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codec_variants import REGULAR, SEED, SIZE, SPATIAL, VARIANTS, codec_of, encoded, vectors
from sketchfed.codecs import CODECS, Codec
from sketchfed.errors import WireError
from sketchfed.testing.codec_packets import CodecPackets
from sketchfed.testing.codec_vectors import TRIALS, contents, scalar
from sketchfed.testing.codecs import CodecConformance, CodecErrors, CodecFeedback, CodecMeans, CodecRefusals, CodecSums
from sketchfed.wire import Bits, Packet


class TestEveryCodec(CodecMeans, CodecErrors, CodecSums, CodecRefusals, CodecPackets):
    codecs: ClassVar = {variant: codec_of(variant) for variant in VARIANTS}

    def draws(self, codec: Codec) -> bool:
        fixed = {
            "dense": True,
            "top_k": getattr(codec, "bits", 32) == 32,
            "sign": not codec.personal,
            "wangni": getattr(codec, "size", None) == codec.dim,
        }
        return not fixed.get(codec.name, False)

    def unbiased(self, codec: Codec) -> bool:
        """Nearest rounding, and a decoder that looks twice at the same packets, are biased, but by very little."""
        nearest = getattr(codec, "precision", "float32") != "float32"
        return codec.unbiased and not nearest and getattr(codec, "correlation", None) != "current"

    def most_trials(self, codec: Codec) -> int:
        """A joint decoder takes milliseconds, so only its plain form is tried until a scale that is 10 % off would show."""
        return TRIALS if codec.name == "rand_proj_spatial" and codec.size != SIZE else super().most_trials(codec)

    def told(self, codec: Codec, correlation: float) -> Codec:
        estimates = codec.name in SPATIAL and codec.correlation in ("estimated", "current")
        return replace(codec, correlation=correlation) if estimates else codec

    def fixed_size(self, codec: Codec) -> bool:
        """All but wangni, which decodes whatever the number of coordinates was meant to be."""
        return super().fixed_size(codec) and codec.name != "wangni"


class TestErrorFeedback(CodecFeedback):
    """It takes the longest, so not all options are tried."""

    codecs: ClassVar = {
        variant: codec_of(variant)
        for variant in [*(name for name in REGULAR if "8 bits" not in name), "sketched, 1 bits", "top_k, one bit"]
    }


def test_no_part_of_the_suite_is_left_out():
    assert set(CodecConformance.__bases__) == {*TestEveryCodec.__bases__, *TestErrorFeedback.__bases__}


@pytest.mark.parametrize("name", [name for name in CODECS if CODECS[name].unbiased])
def test_a_decoder_that_is_a_tenth_too_long_is_found(name):
    plain = codec_of(name)
    kind = type(plain)

    class Long(kind):
        def _decode(self, packets, seed, knowledge):
            return 1.1 * super()._decode(packets, seed, knowledge)

    suite, longer = TestEveryCodec(), Long(**{each.name: getattr(plain, each.name) for each in fields(kind)})
    with pytest.raises(AssertionError, match=r"decodes 1\.\d+ times the mean"):
        suite.test_the_decoded_mean_is_unbiased(longer)


def test_every_codec_has_a_variant():
    assert {name for name, _ in VARIANTS.values()} == set(CODECS)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_the_dense_mean_is_exact(size):
    codec, x = codec_of("dense"), vectors(size)
    assert torch.allclose(codec.decode(encoded(codec, x), SEED), x.double().mean(0).float(), atol=1e-6)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if TestEveryCodec().fixed_size(codec_of(name))])
def test_who_sends_another_size_is_told_which_array_was_expected(variant):
    codec, x = codec_of(variant), vectors(1)[0]
    other = codec_of(variant, size=4 if codec.size != 4 else 8)
    with pytest.raises(WireError, match="should carry an array"):
        codec.check(other.encode(x, SEED, 1), 1)


# Packets of any codec, given to any other -----------------------------------------------------------------------------


def content(array: torch.Tensor | Bits) -> st.SearchStrategy[torch.Tensor | Bits]:
    return st.integers(0, 2**32).map(lambda seed: contents(array, Random(seed)))


SCALARS = (
    st.integers(0, 2**32).map(lambda seed: scalar(Random(seed))) | st.text() | st.floats(allow_nan=False, allow_infinity=False)
)


def packets() -> st.SearchStrategy[Packet]:
    """Made when the test begins, not when it is collected: each codec compiles its kernels for it."""
    parts = [codec_of(variant).encode(vectors(1)[0], SEED) for variant in VARIANTS]
    forms = st.sampled_from([array for packet in parts for array in packet.arrays.values()])
    names = {name for packet in parts for name in packet.arrays}
    return st.builds(
        Packet,
        kind=st.sampled_from([*CODECS, "begin"]),
        arrays=st.dictionaries(
            st.sampled_from(sorted(names)), forms | forms.flatmap(content) | st.just(torch.tensor(1.0)), max_size=4
        ),
        clients=st.sampled_from([1, 1, 1, 7, 2**32 - 1]),
        scalars=st.dictionaries(
            st.sampled_from(sorted({name for packet in parts for name in packet.scalars})), SCALARS | st.just(0), max_size=4
        ),
    )


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.deferred(packets))
def test_any_packet_is_decoded_or_is_a_wire_error(packet):
    for variant, (name, _) in VARIANTS.items():
        if name == packet.kind:
            codec = codec_of(variant, norm_bound=1e30)
            try:
                codec.check(packet, 0)
            except WireError:
                continue
            assert torch.isfinite(codec.decode([packet], SEED)).all()
