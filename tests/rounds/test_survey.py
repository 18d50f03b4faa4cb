"""What clients say of a model: how it travels, and its statistics."""

import math
import random

import pytest

from sketchfed.errors import WireError
from sketchfed.rounds.survey import LARGEST, MOST_BYTES, packed_metrics, read_metrics, statistics
from sketchfed.wire import Packet, pack


def reply(text: object, index: int = 4, kind: str = "metrics") -> bytes:
    return pack(Packet(kind=kind, arrays={}, scalars={"round": index, "metrics": text}))


def test_metrics_arrive_as_they_were_measured():
    found = {"loss": 0.1 + 0.2, "Größe": 7.0, "accuracy": None}
    assert read_metrics(packed_metrics(found, 4), 4) == found


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"junk", "not a packet"),
        (reply("{}", index=3), "for round 3, not 4"),
        (reply("{}", kind="update"), "of kind 'metrics' was expected"),
        (reply(5), "numbers by name"),
        (reply("[1.0]"), "numbers by name"),
        (reply('{"loss": "small"}'), "'loss' is a str"),
        (reply('{"loss": true}'), "'loss' is a bool"),
        (reply('{"loss": [1]}'), "'loss' is a list"),
        (reply('{"no name": 1}'), "numbers by name"),
        (reply('{"' + 65 * "a" + '": 1}'), "numbers by name"),
        (reply("{" + ", ".join(f'"m{at}": 1' for at in range(101)) + "}"), "numbers by name"),
        (reply("[" * 5_000), "numbers by name"),
        (reply('{"loss": ' + 5_000 * "9" + "}"), "numbers by name"),
        (bytes(MOST_BYTES + 1), "at most 65,536 are read"),
    ],
)
def test_nonsense_from_a_client_is_refused(data, why):
    with pytest.raises(WireError, match=why):
        read_metrics(data, 4)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e101", "1e999", "-" + 400 * "9", "null"])
def test_what_cannot_be_added_up_counts_as_no_value(text):
    assert read_metrics(reply(f'{{"loss": {text}, "accuracy": 0.5}}'), 4) == {"loss": None, "accuracy": 0.5}


def test_the_largest_values_can_be_added_up():
    assert all(map(math.isfinite, statistics("loss", [LARGEST, -LARGEST] * 1_000)))


def test_statistics_do_not_depend_on_the_order_of_clients():
    values = [random.Random(1).uniform(-1, 1) * 10**at for at in range(25)]
    shuffled = random.Random(2).sample(values, k=25)
    assert statistics("accuracy", values) == statistics("accuracy", shuffled)


@pytest.mark.parametrize(("count", "worst"), [(1, 1), (10, 1), (11, 2), (20, 2), (25, 3)])
def test_the_worst_tenth_is_rounded_up_to_whole_clients(count, worst):
    values = [float(value) for value in range(count)]
    assert statistics("accuracy", values).worst == sum(values[:worst]) / worst
    assert statistics("val_loss", values).worst == sum(values[-worst:]) / worst


def test_without_values_there_are_no_statistics():
    assert statistics("accuracy", []) is None
