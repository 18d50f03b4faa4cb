"""Few bits a number: unbiased, uniform errors, nothing clipped, and no packet that does harm."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odds import mean_interval
from sketchfed import PublicSeed
from sketchfed.codecs.rounding import WIDTHS, check_width, from_packet, to_parts
from sketchfed.errors import InputError, WireError
from sketchfed.wire import Bits, Packet, pack

SEED = PublicSeed(7)
ROUNDED = [bits for bits in WIDTHS if bits < 32]

every_width = pytest.mark.parametrize("bits", WIDTHS)
every_rounded_width = pytest.mark.parametrize("bits", ROUNDED)


def sent(x: torch.Tensor, bits: int, seed: PublicSeed = SEED) -> Packet:
    arrays, scalars = to_parts(x, bits=bits, seed=seed)
    return Packet(kind="numbers", arrays=arrays, scalars=scalars)


def received(packet: Packet, size: int, bits: int, seed: PublicSeed = SEED) -> torch.Tensor:
    return from_packet(packet, size=size, bits=bits, seed=seed)


COPIES = 4_000
VALUES = [0.0, 1.0, -1.0, 0.5, -0.73, 1e-4]


def errors(bits: int) -> tuple[np.ndarray, float]:
    """Rounding errors in steps, a row of 4,000 for each of six values: each coordinate has a dither of its own."""
    x = torch.tensor(VALUES).repeat_interleave(COPIES)
    packet = sent(x, bits)
    step = float(packet.scalars["step"])
    got = received(packet, len(x), bits).double() - x.double()
    return got.reshape(len(VALUES), COPIES).numpy() / step, step


@every_rounded_width
def test_rounding_is_unbiased_whatever_the_value(bits):
    """False alarm below 6e-6 a width, by Student's t."""
    for own in errors(bits)[0]:
        low, high = mean_interval(own, false_alarm=1e-6)
        assert low <= 0 <= high


@every_rounded_width
def test_the_error_is_uniform_over_one_step_whatever_the_value(bits):
    """Schuchman 1964. False alarm below 6e-6 a width for the law (Kolmogorov–Smirnov), and 6e-6 for its variance 1/12."""
    for own in errors(bits)[0]:
        assert scipy.stats.kstest(own, scipy.stats.uniform(-0.5, 1).cdf).pvalue > 1e-6
        low, high = mean_interval(own**2, false_alarm=1e-6)
        assert low <= 1 / 12 <= high


@every_rounded_width
def test_levels_reach_just_as_far_as_the_largest_value(bits):
    assert errors(bits)[1] == pytest.approx(2 / (2**bits - 1), rel=1e-6)


@every_rounded_width
def test_errors_of_different_seeds_are_uncorrelated(bits):
    """So they average out over clients. False alarm below 1e-6 a width, by Student's t on the products."""
    x = torch.linspace(-1, 1, 5_000)
    first, second = (received(sent(x, bits, SEED.child("client", c)), 5_000, bits, SEED.child("client", c)) - x for c in (0, 1))
    low, high = mean_interval((first * second).numpy(), false_alarm=1e-6)
    assert low <= 0 <= high


@settings(deadline=None)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    st.sampled_from(ROUNDED),
    st.integers(0, 2**64 - 1),
)
def test_no_value_moves_by_more_than_half_a_step(numbers, bits, seed):
    """So none is clipped, not even the largest. Half a step, and the rounding to float32 that every number ends with."""
    x, seed = torch.tensor(numbers), PublicSeed(seed)
    packet = sent(x, bits, seed)
    got = received(packet, len(x), bits, seed)
    reach = packet.scalars["step"] / 2 + np.spacing(got.abs().numpy()).astype(np.float64)
    assert got.dtype == torch.float32
    assert (np.abs(got.double().numpy() - x.double().numpy()) <= reach).all()


@every_width
def test_zeros_arrive_as_zeros(bits):
    assert torch.equal(received(sent(torch.zeros(9), bits), 9, bits), torch.zeros(9))


@every_width
@pytest.mark.parametrize("value", [3.0, -3.0, 1e37, 1e-30])
def test_a_single_number_arrives(value, bits):
    step = 2 / (2**bits - 1)
    assert float(received(sent(torch.tensor([value]), bits), 1, bits)) == pytest.approx(value, rel=step / 2 + 1e-6)


@every_width
def test_no_numbers_at_all_arrive(bits):
    assert received(sent(torch.zeros(0), bits), 0, bits).shape == (0,)


@every_width
@pytest.mark.parametrize("value", [1e-45, 3e-42, 1.1754942e-38])
def test_numbers_below_the_normal_range_arrive_up_to_a_step(value, bits):
    x = torch.tensor([value, -value, 0.0])
    packet = sent(x, bits)
    step = float(packet.scalars.get("step", 0))
    assert step <= 2 * float(x[0]) / (2**bits - 1) + 2.9e-45
    assert (received(packet, 3, bits) - x).abs().max() <= step / 2 + 1.5e-45


@every_width
@pytest.mark.parametrize("value", [1e37, 8e37])
def test_large_numbers_arrive(value, bits):
    x = torch.tensor([value, -value, 0.0])
    assert (received(sent(x, bits), 3, bits) - x).abs().max() <= value / (2**bits - 1) * (1 + 1e-6)


@every_rounded_width
def test_what_the_receiver_would_refuse_the_sender_refuses_already(bits):
    for value in (1e38, 1.69e38, 1.7e38, 1.71e38, 1.8e38, 2.5e38):
        try:
            packet = sent(torch.tensor([value, -value]), bits)
        except InputError:
            continue
        assert torch.isfinite(received(packet, 2, bits)).all()
    with pytest.raises(InputError, match=f"rounded to {bits} bits must be finite and at most .* larger numbers"):
        sent(torch.tensor([3.4e38]), bits)


@every_rounded_width
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_are_refused(bad, bits):
    with pytest.raises(InputError, match="holds NaN, infinity or larger numbers"):
        to_parts(torch.tensor([1.0, bad]), bits=bits, seed=SEED)


def test_thirty_two_bits_are_the_numbers_themselves():
    x = torch.randn(50, generator=torch.Generator().manual_seed(1))
    packet = sent(x, 32)
    assert not packet.scalars
    assert torch.equal(received(packet, 50, 32), x)


@every_width
def test_packets_are_packed_tight(bits):
    size = 12_345
    packet = sent(torch.linspace(-1, 1, size), bits)
    assert 0 <= len(pack(packet)) - -(-size * bits // 8) <= 75


def test_codes_are_frozen_for_all_time():
    """Known answers, computed with fractions: both ends of a run need not be of one release."""
    packet = sent(torch.linspace(-1, 1, 12), 4)
    assert packet.scalars["step"] == pytest.approx(2 / 15, rel=1e-6)
    assert packet.arrays["values"].values.tolist() == [0, 1, 3, 4, 6, 7, 8, 9, 11, 13, 14, 15]


@pytest.mark.parametrize("bits", [0, -1, 5, 7, 33, 64, 2.5, "4", None])
def test_other_widths_are_refused(bits):
    with pytest.raises(InputError, match="numbers are sent with 32, 16, 8, 4, 3, 2 or 1 bits, got bits ="):
        check_width(bits)


def forged(bits: int = 4, size: int = 6, **scalars: object) -> Packet:
    values = Bits(torch.ones(size, dtype=torch.int64), bits=bits)
    return Packet(kind="numbers", arrays={"values": values}, scalars=scalars)


HOSTILE = {
    "no array": (Packet(kind="numbers", arrays={}, scalars={"step": 1.0}), "should carry an array 'values' .* it is missing"),
    "floats": (Packet(kind="numbers", arrays={"values": torch.ones(6)}, scalars={"step": 1.0}), "4-bit.* it is float32"),
    "wider": (forged(bits=5, step=1.0), "it is 5-bit"),
    "narrower": (forged(bits=3, step=1.0), "it is 3-bit"),
    "signed": (
        Packet(kind="numbers", arrays={"values": Bits(torch.ones(6).long(), bits=4, signed=True)}, scalars={"step": 1.0}),
        "should carry an array 'values' of 4-bit",
    ),
    "longer": (forged(size=7, step=1.0), r"it is 4-bit\[7\]"),
    "shorter": (forged(size=5, step=1.0), r"it is 4-bit\[5\]"),
    "none": (forged(size=0, step=1.0), r"it is 4-bit\[0\]"),
    "no step": (forged(), "'step' .* it is missing"),
    "negative step": (forged(step=-1.0), "it is -1.0"),
    "huge step": (forged(step=1e38), r"it is 1e\+38"),
    "largest step": (forged(step=1.7976931348623157e308), r"it is 1.79"),
    "text step": (forged(step="1"), "it is '1'"),
    "true step": (forged(step=True), "it is True"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_packets_are_refused(case):
    packet, complaint = HOSTILE[case]
    with pytest.raises(WireError, match=complaint):
        received(packet, 6, 4)


def test_plain_numbers_of_another_type_or_shape_are_refused():
    for values in (torch.ones(6, dtype=torch.float64), torch.ones(7), torch.ones(2, 3), torch.ones(6, dtype=torch.int32)):
        with pytest.raises(WireError, match=r"should carry an array 'values' of float32\[6\], it is"):
            received(Packet(kind="numbers", arrays={"values": values}), 6, 32)


@settings(deadline=None)
@given(
    st.sampled_from(ROUNDED),
    st.integers(1, 17),
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text(max_size=3)
    ),
    st.data(),
)
def test_whatever_step_arrives_the_outcome_is_finite_numbers_or_a_wire_error(bits, wide, step, data):
    codes = torch.tensor(data.draw(st.lists(st.integers(0, 2**wide - 1), min_size=6, max_size=6)))
    packet = Packet(kind="numbers", arrays={"values": Bits(codes, bits=wide)}, scalars={"step": step})
    try:
        got = received(packet, 6, bits)
    except WireError:
        return
    assert bits == wide
    assert torch.isfinite(got).all()
