from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from fake_grid import tables

from runs.tiny import ALGORITHMS
from sketchfed.config import load_config
from sketchfed.errors import SketchfedError, WireError
from sketchfed.flower.agreement import Agreement
from sketchfed.models import build
from sketchfed.seeds import PublicSeed
from sketchfed.wire import Packet, pack, unpack

SECURE = {"privacy": {"name": "discrete_gaussian", "noise_multiplier": 1.0, "delta": 1e-4}, "secure": {}}


def agreement(kind: str | dict[str, object] = "fedavg", **others: object) -> Agreement:
    module = build("mlp", shape=(4,), outputs=3, seed=PublicSeed(7), hidden=[5])
    config = load_config(tables(kind, **others)).completed(dim=43, sizes=[10, 11, 12], module=module)
    return Agreement(config=config, sizes=(10, 11, 12), identities=(b"a" * 32, b"b" * 32, b"c" * 32), shape=(4,), outputs=3)


@pytest.mark.parametrize("kind", [*ALGORITHMS, "secure"])
def test_an_agreement_arrives_as_it_was_made(kind):
    made = agreement("fedavg", **SECURE) if kind == "secure" else agreement(kind)
    read = Agreement.unpacked(made.packed)
    assert read.digest == made.digest
    assert read.config.to_tables() == made.config.to_tables()
    assert replace(read, config=made.config, sizes=made.sizes) == made


def test_clients_learn_how_many_examples_others_have_only_where_it_matters():
    assert Agreement.unpacked(agreement().packed).sizes == (10, 10, 10)
    passes = {"unit": "example", "batches": "passes", "placement": "sent", "noise_multiplier": 1.0, "delta": 1e-3}
    work = {"name": "iterative", "local_steps": 1, "rounds": 2, "batch": 5, "local_rate": 0.1}
    assert Agreement.unpacked(agreement(work, privacy=passes).packed).sizes == (10, 11, 12)
    assert Agreement.unpacked(agreement({"name": "fedavg", "weighting": "examples"}).packed).sizes == (10, 11, 12)


def test_numbers_of_examples_that_the_digest_does_not_cover_are_not_read():
    """Otherwise a server could tell each client other ones under the digest that all agreed on."""
    made = agreement()
    packet = unpack(made.packed)
    for sizes in ([10, 900, 12], [10]):
        arrays = {**packet.arrays, "sizes": torch.tensor(sizes)}
        read = Agreement.unpacked(pack(Packet(kind="agreement", arrays=arrays, scalars=packet.scalars)))
        assert (read.sizes, read.digest) == ((10, 10, 10), made.digest)


def test_where_the_server_listens_is_no_part_of_it():
    here, there = (agreement(engine={"name": "flower", "address": address}) for address in ("a:1", "b:2"))
    assert here.digest == there.digest
    assert b"a:1" not in here.packed


def test_every_part_is_in_the_digest():
    made = agreement()
    others = {
        "config": replace(made.config, seed=1),
        "sizes": (9, 11, 12),
        "identities": (b"a" * 32, b"c" * 32, b"b" * 32),
        "shape": (2, 2),
        "outputs": 4,
        "task": "regression",
        "layout": "{}",
    }
    digests = {replace(made, **{name: value}).digest for name, value in others.items()}
    assert len(digests | {made.digest}) == len(others) + 1


def test_a_directory_names_clients_by_number():
    assert agreement().directory == {0: b"a" * 32, 1: b"b" * 32, 2: b"c" * 32}
    assert replace(agreement(), identities=()).directory == {}


def damaged(**arrays: torch.Tensor | None) -> bytes:
    packet = unpack(agreement().packed)
    return pack(replace(packet, arrays={k: v for k, v in {**packet.arrays, **arrays}.items() if v is not None}))


def text(content: bytes) -> torch.Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"config": None}, "'config'"),
        ({"config": torch.zeros(3)}, "config"),
        ({"config": text(b"{")}, "JSON"),
        ({"config": text(b"[" * 100_000)}, "JSON"),
        ({"config": text(b"[1]")}, "tables"),
        ({"sizes": torch.tensor([], dtype=torch.int64)}, "sizes"),
        ({"sizes": torch.tensor([10, 0, 3])}, "sizes"),
        ({"sizes": torch.tensor([[10, 3]])}, "'sizes'"),
        ({"shape": torch.tensor([-4])}, "shape"),
        ({"identities": text(b"short")}, "identities of 32 bytes"),
    ],
)
def test_an_agreement_that_makes_no_sense_is_refused(arrays, why):
    with pytest.raises(WireError, match=why):
        Agreement.unpacked(damaged(**arrays))


@pytest.mark.parametrize(
    "scalars",
    [{}, {"outputs": 3}, {"outputs": "3", "task": "classification"}, {"outputs": 3, "task": "art"}],
)
def test_an_agreement_says_what_the_model_is_for(scalars):
    with pytest.raises(WireError, match="outputs and task"):
        Agreement.unpacked(pack(replace(unpack(agreement().packed), scalars={"clients": 3, **scalars})))


@pytest.mark.parametrize("clients", [None, 0, -1, "3", 2.5, 4, 2**40])
def test_an_agreement_says_how_many_clients_there_are(clients):
    packet = unpack(agreement().packed)
    scalars = {name: value for name, value in {**packet.scalars, "clients": clients}.items() if value is not None}
    with pytest.raises(WireError, match="clients"):
        Agreement.unpacked(pack(replace(packet, scalars=scalars)))


def test_damaged_bytes_are_refused_and_raise_nothing_else():
    packed = agreement().packed
    for at in range(0, len(packed), 7):
        for spoilt in (packed[:at], packed[:at] + bytes([packed[at] ^ 0x55]) + packed[at + 1 :]):
            with suppress(SketchfedError):
                assert Agreement.unpacked(spoilt).digest != agreement().digest
    with pytest.raises(WireError, match="agreement"):
        Agreement.unpacked(pack(Packet(kind="other", arrays={})))
