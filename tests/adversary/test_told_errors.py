"""What a server learns from refusals and failures: which rule refused. No path, no spending of others, nothing of the data."""

import logging

import own_data
import pytest
import torch
from fake_grid import NODES, tables
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from lying_server import ALL, BEGIN, NOISE, SUMS, Sum, agreed, answers, grid, hello, snapshot

from sketchfed.config import load_config
from sketchfed.flower import sketchfed_mod
from sketchfed.flower.agreement import Agreement
from sketchfed.flower.desk import Desk
from sketchfed.flower.drawing import drawn
from sketchfed.flower.enrolment import enrolled
from sketchfed.flower.layout import ArrayLayout
from sketchfed.flower.messages import NEVER, Reply, Request
from sketchfed.flower.mod import AppSource
from sketchfed.flower.node import answered
from sketchfed.flower.source import NodeSource
from sketchfed.nodes import NodeStore
from sketchfed.seeds import PublicSeed
from sketchfed.training import Turn
from sketchfed.training.total import MOST
from sketchfed.wire import pack

pytestmark = pytest.mark.usefixtures("in_a_run")
OFFER = tables(data={"name": "given", "clients": 3})
PRIVATE = {"algorithm": {"name": "fedavg"}, "privacy": NOISE}
SECRET = "patient 4711"


# Apps


class AppGrid:
    """Nodes whose messages go through `sketchfed_mod` to an app."""

    def __init__(self, app) -> None:
        self.nodes, self._app = grid(data=""), app
        self.nodes._served = lambda message, context: sketchfed_mod(message, context, app)

    def trained(self, **settings) -> dict[int, Reply]:
        """What the nodes answer to a task of a run with these settings."""
        session = b"m" * 16
        record = ArrayRecord({"weight": torch.zeros(3)})
        layout = ArrayLayout.of(record, train_config={}, evaluate_config={})
        config = load_config({"algorithm": {"name": "fedavg"}, **settings, "data": {"name": "given", "clients": 3}})
        members = enrolled(self.nodes, config, session=session, clients=3, wait=0.01)
        nonces = ()
        if settings:
            both = drawn(self.nodes, members, config, session=session)
            config, nonces = load_config({**config.to_tables(), "joint": both.joint(session)}), both.nonces
        packed = Agreement(
            config=config.completed(dim=3, sizes=[1] * 3), sizes=(1, 1, 1), layout=layout.text, nonces=nonces
        ).packed
        replies = {}
        for client, node in enumerate(NODES):
            request = Request(
                session=session,
                agreement=packed,
                client=client,
                stage="train",
                acknowledged=NEVER,
                payload=snapshot(0.0, dim=3),
            )
            message = Message(request.to_records(), dst_node_id=node, message_type="train")
            context = self.nodes.contexts[node]
            replies[client] = Reply.of(answered(message, context, AppSource(message, context, self._app)))
        return replies


def failing(message, context):
    return Message(Error(7, f"{SECRET} has no label"), reply_to=message)


def raising(message, context):
    raise KeyError(SECRET)


class OwnError(Exception):
    pass


def raising_its_own(message, context):
    raise type(f"NoLabelOf{SECRET.replace(' ', '')}", (OwnError,), {})


@pytest.mark.parametrize("app", [failing, raising, raising_its_own])
def test_of_an_app_that_fails_a_server_learns_nothing_where_updates_are_hidden(app, caplog):
    with caplog.at_level(logging.WARNING):
        replies = AppGrid(app).trained(privacy=NOISE)
    assert {reply.status for reply in replies.values()} == {"done"}, "its update counts as zero, with the usual noise"
    assert not any("4711" in reply.reason for reply in replies.values())
    assert "4711" in caplog.text, "the node's own log has it"


def test_of_an_app_that_fails_a_server_learns_why_where_nothing_is_hidden():
    assert f"the app failed: {SECRET} has no label" in AppGrid(failing).trained()[0].reason


# Data


def test_labels_that_do_not_fit_are_not_told_where_updates_are_hidden(monkeypatch, caplog):
    """sketchfed's own checks of the data quote it."""
    engine = agreed(grid(), **PRIVATE)
    monkeypatch.setattr(own_data, "of_client", lambda client: (torch.zeros(20, 4), torch.full((20,), 4711)))
    assert engine.ask(ALL) == {}
    assert engine.complaints[0] == "it raised InputError; its own log says more."
    assert "got 4711 to 4711" in caplog.text


def test_labels_that_do_not_fit_are_not_told_to_who_says_hello(monkeypatch):
    monkeypatch.setattr(own_data, "of_client", lambda client: raising(None, None))
    assert "4711" not in hello(grid(), OFFER | PRIVATE).reason
    assert "4711" not in hello(grid(epsilon=3.0), OFFER | PRIVATE).reason


def test_a_model_that_breaks_on_some_data_only_is_no_question_to_the_data():
    """Weights of 1e38 overflow if a feature is above 3.4. A refusal would tell that, without noise and for nothing."""
    engine = agreed(grid(), **PRIVATE)
    assert len(engine.ask(dict.fromkeys(range(3), snapshot(1e38)))) == 3
    with Desk(NODES[0], {}).store.transaction() as rows:
        assert rows.execute("SELECT COUNT(*) FROM spending").fetchone() == (3,), "and it is charged"


def test_a_model_that_breaks_on_some_data_only_makes_nobody_leave_a_secure_sum():
    engine = agreed(grid(), algorithm={"name": "fedavg"}, **SUMS)
    assert Sum(engine).run(tasks=dict.fromkeys(range(3), snapshot(1e38))) is not None


@pytest.mark.parametrize("algorithm", [{"scaffold": True}, {"weighting": "examples"}], ids=str)
def test_what_travels_beside_an_update_cannot_overflow_either(algorithm):
    """With steps of 1e-30, a gradient of 1e30 is a small change of the weights, and a huge one of a control variate."""
    engine = agreed(grid(), algorithm={"name": "fedavg", "local_rate": 1e-30, **algorithm}, secure={"clip": 1.0})
    work = NodeSource({"data": "own_data:load", "partition-id": 0}).work(engine._agreement, 0)
    trainer, settings = work.participant.trainer, work.participant.algorithm.work
    weights = torch.zeros(trainer.dim)
    weights[:20] = 1e30  # the first layer
    weights[-1:] = 1e38 if "weighting" in algorithm else 0.0
    trained = trainer.train(weights, work.examples(), settings, Turn(seed=PublicSeed(0)))
    assert float((trained - weights).abs().max()) <= MOST


# Files


def spoil_policy(tmp_path):
    (tmp_path / "own.toml").write_text("[limits")
    return {"policy": str(tmp_path / "own.toml")}


def no_policy(tmp_path):
    return {"policy": str(tmp_path / "own.toml")}


def wrong_policy(tmp_path):
    (tmp_path / "own.toml").write_text("[demand]\nepsilo = 3\n")
    return {"policy": str(tmp_path / "own.toml")}


def no_identity(tmp_path):
    return {"identity": str(tmp_path / "own.key")}


def short_identity(tmp_path):
    (tmp_path / "own.key").write_text("ab")
    return {"identity": str(tmp_path / "own.key")}


def spoil_store(tmp_path):
    (tmp_path / "flwr/sketchfed").mkdir(parents=True)
    (tmp_path / "flwr/sketchfed/store.sqlite").write_text("no store")
    return {}


def no_loader(tmp_path):
    return {"data": "no_such_module:load"}


@pytest.mark.parametrize(
    "spoilt",
    [spoil_policy, no_policy, wrong_policy, no_identity, short_identity, spoil_store, no_loader],
    ids=lambda f: f.__name__,
)
def test_a_server_learns_no_path_of_a_node(spoilt, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    reply = hello(grid(**spoilt(tmp_path)), OFFER)
    assert reply.status == "refused"
    assert "own." not in reply.reason
    assert str(tmp_path) not in reply.reason
    assert str(tmp_path) in caplog.text, "the node's own log has it"


def test_a_server_learns_no_path_where_a_built_in_data_set_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("SKETCHFED_DATA", str(tmp_path))
    reply = hello(grid(data=""), OFFER | {"data": {"name": "mnist", "partition": "iid", "clients": 3}})
    assert reply.reason == "data set 'mnist' is not here."


def test_a_server_learns_no_path_of_a_directory(tmp_path, caplog):
    (tmp_path / "own.directory").write_text("".join(f"{client} {'ab' * 32}\n" for client in range(3)))
    engine = agreed(grid(directory=str(tmp_path / "own.directory")), algorithm={"name": "fedavg"}, **SUMS)
    engine.ask(dict.fromkeys(range(3), pack(Sum(engine).terms.packet)), "keys")
    assert "another identity than this node's directory has" in engine.complaints[0]
    assert str(tmp_path) not in engine.complaints[0]
    assert str(tmp_path) in caplog.text


@pytest.mark.parametrize("text", ["[limits", "[allow]\nplain = false\n"], ids=["unreadable", "strict"])
def test_a_message_of_another_strategy_is_refused_without_a_path(text, tmp_path, caplog):
    (tmp_path / "own.toml").write_text(text)
    nodes = grid(policy=str(tmp_path / "own.toml"))
    plain = Message(RecordDict({"config": ConfigRecord({})}), dst_node_id=NODES[0], message_type="train")
    reply = sketchfed_mod(plain, nodes.contexts[NODES[0]], lambda *_: pytest.fail("the app was called"))
    assert "policy" in reply.error.reason
    assert str(tmp_path) not in reply.error.reason
    assert str(tmp_path) in caplog.text


# Rules

RULES = {
    "[limits]\nrounds = 2": "(line 2 of the node's policy: limits.rounds = 2)",
    "# mine\n[limits]\nclients = 2": "(line 3 of the node's policy: limits.clients = 2)",
    "[demand]\nsecure = true": "(line 2 of the node's policy: demand.secure = true)",
    '[allow]\nmodels = ["my_ward:net"]': "(line 2 of the node's policy: allow.models)",
    "[data.ward-7]\nlifetime_epsilon = 8.0": "(line 2 of the node's policy: lifetime_epsilon)",
}


@pytest.mark.parametrize("text", RULES)
def test_a_refusal_says_which_line_refused_and_not_in_which_file(text, tmp_path, caplog):
    (tmp_path / "own.toml").write_text(text)
    reply = hello(grid(policy=str(tmp_path / "own.toml"), dataset="ward-7"), OFFER)
    assert reply.reason.endswith(RULES[text])
    assert f"{tmp_path / 'own.toml'}:" in caplog.text


def test_a_server_learns_nothing_of_what_others_spent(tmp_path, caplog):
    """Another server's run used up the data. This one learns that the budget is used up, and not by how much or of how much."""
    (tmp_path / "own.toml").write_text("[data.ward-7]\nlifetime_epsilon = 3.141\nlifetime_delta = 1e-5\n")
    nodes = grid(policy=str(tmp_path / "own.toml"), dataset="ward-7")
    others = agreed(nodes, session=b"o" * 16, **PRIVATE)
    while others.ask({0: snapshot(float(len(nodes.requests)))}):
        pass
    engine = agreed(nodes, **PRIVATE)
    assert engine.ask({0: BEGIN}) == {}
    assert engine.complaints[0] == (
        "this answer would cost more than what is left of the lifetime budget of this node's data. "
        "(line 2 of the node's policy: lifetime_epsilon)"
    )
    assert "what data set 'ward-7' has spent over all runs to ε =" in caplog.text
    assert "data.ward-7.lifetime_epsilon = 3.141" in caplog.text


def test_a_server_learns_not_how_many_runs_others_had(tmp_path, caplog):
    (tmp_path / "own.toml").write_text("[limits]\nenrolments = 17\n")
    nodes = grid(policy=str(tmp_path / "own.toml"))
    for number in range(17):
        NodeStore(tmp_path / "flwr/sketchfed/store.sqlite").enrol(bytes([number]) * 16, 17, "", "")
    reply = hello(nodes, OFFER, session=b"x" * 16)
    assert reply.reason.endswith("(line 2 of the node's policy: limits.enrolments)")
    assert "17" not in reply.reason
    assert "17 runs asked this node to join" in caplog.text


def test_what_is_refused_is_not_answered(tmp_path):
    """The tests above would pass if nothing were ever answered."""
    assert len(answers(grid(epsilon=3.0), **PRIVATE)) == 3
