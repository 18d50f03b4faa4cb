"""What a lying server tries with nodes, and what it gets: nothing that the owner of a node did not allow."""

import os
import signal
import sys
from collections import Counter
from hashlib import sha256

import pytest
import torch
from fake_grid import NODES, tables
from flwr.app import ArrayRecord, Message, RecordDict
from lying_server import (
    ALL,
    BEGIN,
    NOISE,
    SUMS,
    Sum,
    agreed,
    answers,
    asked,
    copied,
    grid,
    hello,
    retasked,
    snapshot,
    told,
)

from sketchfed.config import load_config
from sketchfed.flower import sketchfed_mod
from sketchfed.nodes import NodeStore
from sketchfed.privacy.accounting import epsilon_of
from sketchfed.privacy.claims import Charge, Claim
from sketchfed.wire import pack

pytestmark = pytest.mark.usefixtures("in_a_run")

PLACES = {
    "model": {"model": {"name": "evil:thing"}},
    "loss": {"model": {"loss": "evil:thing"}},
    "training loop": {"training": {"train": "evil:thing"}},
    "evaluation": {"training": {"train": "evil:thing", "evaluate": "evil:thing"}},
    "metric": {"model": {"metric": "evil:thing"}},
    "data": {"data": {"name": "evil:thing"}},
    "partition": {"data": {"partition": "evil:thing"}},
    "algorithm": {"algorithm": {"name": "evil:thing"}},
    "combine rule": {"algorithm": {"name": "fedavg", "combine": "evil:thing"}},
    "option of a combine rule": {"algorithm": {"name": "fedavg", "combine": "krum"}, "combine": {"attackers": "evil:thing"}},
    "server optimiser": {"algorithm": {"name": "fedavg", "server": "evil:thing"}},
    "codec": {"codec": {"name": "evil:thing"}},
    "sketch": {"algorithm": {"name": "iterative"}, "sketch": {"name": "evil:thing"}},
    "sketch inside a codec": {"codec": {"name": "rand_proj_spatial", "family": "evil:thing"}},
    "mechanism": {"privacy": {"name": "evil:thing", "noise_multiplier": 1.0}},
    "engine": {"engine": {"name": "evil:thing"}},
}


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Whether a module that the server names was imported, which runs it."""
    (tmp_path / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n\ndef thing(*args, **options):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield (tmp_path / "ran").exists
    sys.modules.pop("evil", None)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("own", [True, False], ids=["own data", "named data"])
def test_a_name_in_an_offer_runs_no_code(place, own, ran):
    nodes = grid() if own else grid(data="")
    hello(nodes, tables() | PLACES[place])
    assert not ran()


@pytest.mark.parametrize("place", PLACES)
def test_a_name_in_an_agreement_runs_no_code(place, ran):
    settings = load_config(tables(data={"name": "given", "clients": 3})).to_tables()
    settings.pop("engine")
    reply = asked(grid(), NODES[0], "train", client=0, agreement=told(settings | PLACES[place]), payload=BEGIN)
    assert not ran()
    assert reply.status == "refused"


def test_a_function_of_the_standard_library_is_no_data_set(tmp_path):
    hello(grid(data=""), {"data": {"name": "os:mkdir", "path": str(tmp_path / "made"), "partition": "iid", "clients": 3}})
    assert not (tmp_path / "made").exists()


def test_a_mask_is_used_once_however_often_the_context_is_copied():
    """Two masked replies of one client in one sum: their difference is x₁ − x₂, without any mask."""
    nodes = grid()
    attack = Sum(agreed(nodes, algorithm={"name": "fedavg"}, **SUMS))
    attack.run(until="masked", tasks=dict.fromkeys(range(3), snapshot(0.0)))
    before, replies = copied(nodes), []
    for value in (0.0, 0.5):
        nodes.contexts.update(before if replies else copied(nodes))
        asks = {client: retasked(request, snapshot(value)) for client, request in attack.requests["masked"].items()}
        replies.append(attack.engine.ask(asks, "masked"))
    assert len(replies[0]) == 3
    assert replies[1] == {}
    assert "answered" in attack.engine.complaints[0]


@pytest.mark.parametrize(("first", "opened"), [(0.0, True), (0.1, False)], ids=["one model", "two models"])
def test_a_server_that_sends_one_client_another_model_gets_no_sum_with_it(first, opened):
    """Steps are tiny, so a sum that is opened is nearly zero. Numbers that masks still hide are anything up to 2^bits."""
    still = {"name": "fedavg", "local_rate": 1e-12}
    attack = Sum(agreed(grid(), algorithm=still, secure={"clip": 1.0, "survivors": 0.9}))
    total, survivors = attack.run(tasks={0: snapshot(first), 1: snapshot(0.0), 2: snapshot(0.0)})
    half = 2 ** (attack.terms.bits - 1)
    far = ((total + half) % (2 * half) - half).abs().max().item()
    assert survivors == (0, 1, 2)
    assert (far <= 3) == opened
    assert opened or far > half / 2, "43 coordinates, uniform: all are below with probability 2^-43"


def test_a_stage_that_is_asked_for_again_gets_the_same_bytes():
    nodes = grid()
    attack = Sum(agreed(nodes, algorithm={"name": "fedavg"}, **SUMS))
    contexts = {}

    def twice(stage, requests):
        contexts.update(copied(nodes))
        first = attack.engine.ask(requests, stage)
        nodes.contexts.update(contexts)
        assert attack.engine.ask(requests, stage) == first, stage
        return first

    assert attack.run(twice, tasks=dict.fromkeys(range(3), snapshot(0.0))) is not None


def test_sums_that_were_joined_are_remembered_whatever_session_the_server_names():
    """The first step of opening one client's update: the same terms once more, after a session in between."""
    nodes = grid()
    first = Sum(agreed(nodes, **SUMS))
    assert len(first.engine.ask(dict.fromkeys(range(3), pack(first.terms.packet)), "keys")) == 3
    agreed(nodes, session=b"t" * 16, **SUMS).ask(ALL, "keys")
    again = agreed(nodes, session=b"u" * 16, **SUMS)
    assert again.ask(dict.fromkeys(range(3), pack(first.terms.packet)), "keys") == {}


def test_fresh_sessions_do_not_renew_what_a_node_may_spend():
    nodes, heard = grid(epsilon=3.0), Counter()
    for number in range(30):
        session = number.to_bytes(16, "little")
        try:
            heard.update(agreed(nodes, session=session, algorithm={"name": "fedavg"}, privacy=NOISE).ask(ALL).keys())
        except Exception:
            break
    spent = epsilon_of(
        {Charge(multiplier=2.0): heard[0]}, Claim(unit="client", adjacency="zero-out", observer="server", delta=1e-5)
    )
    assert heard[0] >= 1
    assert spent <= 3.0


def sums_opened(label: str, session: bytes) -> int:
    """How many of twelve sums a server opens if it calls the last stage by this name."""
    private = {"name": "discrete_gaussian", "noise_multiplier": 4.0, "epsilon": 2.0, "delta": 1e-5}
    engine = agreed(grid(), session=session, algorithm={"name": "fedavg", "rounds": 100}, privacy=private, secure={})

    def ask(stage, requests):
        return engine.ask(requests, label if stage == "unmask" else stage)

    tasks = (dict.fromkeys(range(3), snapshot(0.0, index)) for index in range(12))
    return sum(Sum(engine, index=index).run(ask, tasks=task) is not None for index, task in enumerate(tasks))


def test_a_sum_is_charged_whatever_the_server_calls_the_request():
    honest = sums_opened("unmask", b"h" * 16)
    assert 1 <= honest < 12
    for label in ("shares", "consent", "dance"):
        assert sums_opened(label, label.encode().ljust(16)) <= honest


def test_a_sum_is_charged_when_the_masked_values_leave():
    """Others can open it without this client, so a server that never asks it to unmask has the sum all the same."""
    private = {"name": "discrete_gaussian", "noise_multiplier": 4.0, "epsilon": 2.0, "delta": 1e-5}
    engine = agreed(grid(), algorithm={"name": "fedavg", "rounds": 100}, privacy=private, secure={})
    masked = 0
    for index in range(12):
        attack = Sum(engine, index=index)
        attack.run(until="consent", tasks=dict.fromkeys(range(3), snapshot(0.0, index)))
        masked += "consent" in attack.requests
    assert 1 <= masked < 12


BYPASSES = {
    "central noise": {"privacy": {**NOISE, "observer": "public"}},
    "noise of nothing": {"privacy": {**NOISE, "noise_multiplier": 1e-9}},
    "a delta that allows all": {"privacy": {**NOISE, "delta": 0.24}},
    "noise that all can draw": {"privacy": {**NOISE, "insecure_noise_seed": 1}},
    "passes with noise of nothing": {
        "algorithm": {"name": "iterative", "local_steps": 1, "batch": 5},
        "privacy": {**NOISE, "unit": "example", "batches": "passes", "noise_multiplier": 1e-9},
    },
    "no privacy": {},
    "sums without noise": {"secure": {"clip": 1.0}},
}


@pytest.mark.parametrize("settings", BYPASSES.values(), ids=BYPASSES.keys())
def test_a_node_that_demands_an_epsilon_gets_it(settings):
    assert answers(grid(epsilon=3.0), **{"algorithm": {"name": "fedavg"}, **settings}) == {}


STEPS = {
    "algorithm": {"name": "fedavg", "local_steps": 1, "batch": 5},
    "privacy": {**NOISE, "unit": "example", "placement": "steps"},
}
OPEN = {
    "nothing": {},
    "noise in steps": STEPS,
    "noise in steps and sums switched off": {**STEPS, "secure": {"aggregation": False}},
    "noise in steps and sums": {**STEPS, "secure": {"clip": 1.0}},
    "noise": {"privacy": NOISE},
}


@pytest.mark.parametrize("settings", OPEN.values(), ids=OPEN.keys())
@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_a_node_that_demands_secure_sums_answers_nothing_in_the_clear(settings, stage):
    nodes = grid(secure=True)
    try:
        replies = agreed(nodes, **{"algorithm": {"name": "fedavg"}, **settings}).ask(ALL, stage)
    except Exception:
        replies = {}
    assert replies == {}


@pytest.mark.parametrize("demand", [{"secure": True}, {"epsilon": 3.0}], ids=["secure", "epsilon"])
def test_the_mod_hands_no_weights_to_another_strategy(demand):
    nodes, called = grid(**demand), []

    def app(message, context):
        called.append(message)
        return Message(RecordDict({"arrays": ArrayRecord([torch.ones(3).numpy()])}), reply_to=message)

    plain = Message(RecordDict({"arrays": ArrayRecord([torch.zeros(3).numpy()])}), dst_node_id=NODES[0], message_type="train")
    reply = sketchfed_mod(plain, nodes.contexts[NODES[0]], app)
    assert reply.has_error()
    assert not called


ABSURD = {
    "rounds": {"algorithm": {"name": "fedavg", "rounds": 10**9}},
    "layers": {"model": {"name": "mlp", "hidden": [20_000, 20_000]}},
    "layers without end": {"model": {"name": "mlp", "hidden": [1] * 10**6}},
    "sketch": {"algorithm": {"name": "iterative"}, "sketch": {"name": "srht", "size": 10**12}},
    "steps": {"algorithm": {"name": "fedavg", "local_steps": 10**12}},
    "batch": {"algorithm": {"name": "fedavg", "batch": 10**15}},
}


@pytest.mark.parametrize("settings", ABSURD.values(), ids=ABSURD.keys())
def test_absurd_sizes_are_refused_from_the_numbers(settings, monkeypatch):
    """Nothing is built: neither the model nor the protection is asked for."""

    def built(*_, **__):
        raise AssertionError("something was built")

    monkeypatch.setattr("sketchfed.flower.source.build_module", built)
    monkeypatch.setattr("sketchfed.flower.agreement.load_config", built)
    base = load_config(tables(data={"name": "given", "clients": 3})).to_tables()
    base.pop("engine")
    reply = asked(grid(), NODES[0], "train", client=0, agreement=told(base | settings), payload=BEGIN)
    assert reply.status == "refused"
    assert "limits." in reply.reason


def test_a_node_is_one_client_of_a_run():
    engine = agreed(grid(), algorithm={"name": "fedavg"}, privacy=NOISE)
    assert engine.ask({0: BEGIN})
    members = list(engine.members)
    engine._members = [members[0], members[0], members[2]]
    assert engine.ask({1: BEGIN}) == {}
    assert "this client's part of the joint randomness is missing" in engine.complaints[1]


def test_a_session_that_began_privately_stays_as_it_began():
    nodes = grid()
    engine = agreed(nodes, algorithm={"name": "fedavg"}, privacy=NOISE)
    assert len(engine.ask(ALL)) == 3
    assert answers(nodes, algorithm={"name": "fedavg"}) == {}
    assert len(engine.ask(ALL)) == 3, "what was agreed still is"


def test_forks_with_copies_of_one_context_mask_one_value():
    """Six processes serve `masked` requests with different tasks, each from its own copy of everything but the store."""
    nodes = grid()
    attack = Sum(agreed(nodes, algorithm={"name": "fedavg"}, **SUMS))
    attack.run(until="masked", tasks=dict.fromkeys(range(3), snapshot(0.0)))
    sealed, digest = attack.requests["masked"][0], attack.engine._agreement.digest
    read, write = os.pipe()
    children = []
    for number in range(6):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                payload = retasked(sealed, snapshot(float(number)))
                reply = asked(nodes, NODES[0], "masked", client=0, agreement=digest, payload=payload)
                os.write(write, reply.status.encode() + b" " + sha256(reply.payload).hexdigest().encode() + b"\n")
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(write)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 6
    with os.fdopen(read, "rb") as file:
        lines = file.read().decode().splitlines()
    assert Counter(line.split()[0] for line in lines) == {"done": 1, "refused": 5}


def test_a_node_is_asked_to_join_so_many_runs_a_day(tmp_path):
    (tmp_path / "policy.toml").write_text("[limits]\nenrolments = 2\n")
    nodes, offer = grid(policy=str(tmp_path / "policy.toml")), tables(data={"name": "given", "clients": 3})
    said = [hello(nodes, offer, session=bytes([number]) * 16) for number in (1, 1, 2, 3)]
    assert [reply.status for reply in said] == ["done", "done", "done", "refused"]
    assert "line 2 of the node's policy: limits.enrolments" in said[-1].reason
    settings = load_config(offer).to_tables()
    settings.pop("engine")
    rude = asked(nodes, NODES[0], "train", session=b"4" * 16, client=0, agreement=told(settings), payload=BEGIN)
    assert "limits.enrolments" in rude.reason, "who says no hello is counted as well"


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_node_that_is_killed_around_its_answer_masks_one_value(point):
    """Killed before the commit, it never answers this stage. Killed between commit and send, it gives the stored bytes."""
    nodes = grid()
    attack = Sum(agreed(nodes, algorithm={"name": "fedavg"}, **SUMS))
    attack.run(until="masked", tasks=dict.fromkeys(range(3), snapshot(0.0)))
    sealed, digest = attack.requests["masked"][0], attack.engine._agreement.digest

    def masked(value):
        payload = retasked(sealed, snapshot(value))
        return asked(nodes, NODES[0], "masked", client=0, agreement=digest, payload=payload)

    child = os.fork()
    if child == 0:
        settle = NodeStore.settle

        def killed(*arguments, **options):
            if point == "after":
                settle(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        NodeStore.settle = killed
        masked(0.0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert masked(0.5).status == "refused"
    first, second = masked(0.0), masked(0.0)
    assert first == second
    assert first.status == ("done" if point == "after" else "refused")


@pytest.mark.parametrize("index", [3, 4, 10**6, 2**61])
def test_a_node_does_no_work_for_a_round_after_the_last(index, monkeypatch):
    """The run has three rounds. A server that goes on gets more cohorts to choose from."""
    engine = agreed(grid(), algorithm={"name": "fedavg"}, privacy=NOISE)
    assert len(engine.ask(dict.fromkeys(range(3), snapshot(0.0, 2)))) == 3
    monkeypatch.setattr("sketchfed.flower.source.NodeSource._load", lambda *_: pytest.fail("the data was loaded"))
    assert engine.ask(dict.fromkeys(range(3), snapshot(0.0, index))) == {}
    assert "the run has 3 rounds" in engine.complaints[0]


@pytest.mark.parametrize("index", [3, 10**6])
def test_a_node_joins_no_sum_of_a_round_after_the_last(index):
    engine = agreed(grid(), algorithm={"name": "fedavg"}, **SUMS)
    last, beyond = Sum(engine, index=2), Sum(engine, index=index)
    assert len(engine.ask(dict.fromkeys(range(3), pack(last.terms.packet)), "keys")) == 3
    assert engine.ask(dict.fromkeys(range(3), pack(beyond.terms.packet)), "keys") == {}
    assert "the run has 3 rounds" in engine.complaints[0]
