"""A server that asks a node for work without bounds is refused from the numbers, before anything of that size is built."""

from dataclasses import replace

import pytest
from fake_grid import NODES, tables
from lying_server import BEGIN, NOISE, SUMS, Sum, agreed, asked, grid, hello, told

from sketchfed.flower.layout import ArrayLayout
from sketchfed.wire import pack, unpack

pytestmark = pytest.mark.usefixtures("in_a_run")
GIVEN = {"name": "given", "clients": 3}
PRIVATE = {"algorithm": {"name": "fedavg"}, "privacy": NOISE}


def test_a_run_of_too_many_clients_is_refused_from_the_number_alone(monkeypatch):
    def built(*_, **__):
        raise AssertionError("something was built")

    monkeypatch.setattr("sketchfed.flower.source.load_config", built)
    monkeypatch.setattr("sketchfed.flower.agreement.load_config", built)
    for own in ("own_data:load", ""):
        reply = hello(grid(data=own), tables(data={"name": "digits", "partition": "iid", "clients": 10**9}))
        assert "limits.clients = 100000" in reply.reason
    settings = tables(data={"name": "given", "clients": 10**9})
    reply = asked(grid(), NODES[0], "train", client=0, agreement=told(settings), payload=BEGIN)
    assert "limits.clients = 100000" in reply.reason


def test_a_roll_of_too_many_clients_is_refused_before_a_signature_is_checked(tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text("[limits]\nclients = 3\n")
    nodes = grid(policy=str(tmp_path / "own.toml"))
    agreed(nodes, **PRIVATE)
    monkeypatch.setattr("sketchfed.nodes.drawing.is_signed", lambda *_: pytest.fail("a signature was checked"))
    reply = asked(nodes, NODES[0], "reveal", payload=bytes(128 * 4))
    assert "3 clients at most" in reply.reason


def test_a_request_carries_one_packet_of_the_next_sum(monkeypatch):
    """Each packet is some 100 bytes, and a client builds its model for it."""
    engine = agreed(grid(), algorithm={"name": "fedavg"}, **SUMS)
    keys = pack(Sum(engine).terms.packet)
    monkeypatch.setattr("sketchfed.flower.source.build_module", lambda *_, **__: pytest.fail("a model was built"))
    assert engine.ask({0: keys * 1_000}, "keys") == {}
    assert "999 packets follow" in engine.complaints[0]


@pytest.mark.parametrize("hidden", [[10**9], [10**8, 10**8]], ids=str)
def test_outputs_below_zero_do_not_make_up_for_a_large_model(hidden, monkeypatch):
    """(4 + 1)·10⁹ and (10⁹ + 1)·(−5) parameters are few."""
    monkeypatch.setattr("sketchfed.flower.source.build_module", lambda *_, **__: pytest.fail("a model was built"))
    packet = unpack(told(tables(data=GIVEN, model={"name": "mlp", "hidden": hidden})))
    agreement = pack(replace(packet, scalars={**packet.scalars, "outputs": -5 * len(hidden) * 10 ** (8 * len(hidden) - 8)}))
    reply = asked(grid(), NODES[0], "train", client=0, agreement=agreement, payload=BEGIN)
    assert reply.status == "refused"
    assert "an agreement says outputs" in reply.reason


ARRAYS = [["w", "<U250000000", [3]], ["w", "S999999999", [3]], ["w", "<f4", [-3]], ["w", "V9", [1]]]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_a_layout_is_of_numbers(array):
    """Three texts of 10⁹ bytes each are an array of three."""
    layout = ArrayLayout(arrays=[array], fixed={}, train_config={}, evaluate_config={}).text
    with pytest.raises(ValueError, match="not those of numbers"):
        ArrayLayout.from_text(layout)


def test_a_client_compares_proposed_terms_with_few_attempts():
    """It computes the terms of each attempt until those that the server proposes are among them."""
    settings = tables(algorithm={"name": "fedavg"}, data=GIVEN, privacy=SUMS["privacy"], secure={"attempts": 10**9})
    reply = asked(grid(), NODES[0], "train", client=0, agreement=told(settings), payload=BEGIN)
    assert "secure.attempts must be from 1 to 20" in reply.reason
