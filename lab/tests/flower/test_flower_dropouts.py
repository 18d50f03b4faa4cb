"""What a run does about clients that are late, refuse or send nonsense, over a grid whose nodes answer in this process."""

import json

import pytest
from fake_grid import NODES, FakeGrid, changed, failed, run_on, tables
from flwr.common.constant import ErrorCode
from rehearsal import same, survivors

import sketchfed
from sketchfed.errors import DivergedError, InputError, NoReplyError
from sketchfed.flower import TRAFFIC
from sketchfed.flower.messages import RECORD
from sketchfed.privacy import PrivacyLedger
from sketchfed.runs.folder import PRIVACY

pytestmark = pytest.mark.usefixtures("in_a_run")
NOISE = {"noise_multiplier": 2.0, "delta": 1e-4}


def spoilt(client, spoil, *, stage="train", index=0):
    """A grid on which one reply of a client is spoilt: its first at that stage, or a later one."""
    asked = []

    def tamper(request, reply):
        if (request.client, request.stage) != (client, stage):
            return reply
        asked.append(request)
        return spoil(reply) if len(asked) == index + 1 else reply

    return FakeGrid(tamper)


def charged(folder):
    """Whom the noise of each round was charged to, by the server's books."""
    return [entry.clients for entry in PrivacyLedger.load(folder / PRIVACY).entries]


def participants(result):
    return [line["participants"] for line in result.metrics]


def test_a_round_goes_on_without_a_client_that_is_late(caplog):
    result = run_on(spoilt(1, lambda _: None), tables())
    assert participants(result) == [2, 3, 3]
    assert "round 1 goes on without client 1: no reply came within 1 s." in caplog.text


@pytest.mark.parametrize(
    ("spoil", "why"),
    {
        "raised": (lambda reply: failed(reply, ErrorCode.CLIENT_APP_RAISED_EXCEPTION), "its ClientApp raised"),
        "session": (lambda reply: changed(reply, session=bytes(16)), "replayed or lost"),
        "client": (lambda reply: changed(reply, client=0), "replayed or lost"),
        "stage": (lambda reply: changed(reply, stage="masked"), "replayed or lost"),
        "payload": (lambda reply: changed(reply, payload=b"garbage"), "without client 1"),
        "empty": (lambda reply: changed(reply, payload=b""), "without client 1"),
        "untold": (lambda reply: changed(reply, status="refused", payload=b""), "without client 1"),
    }.values(),
)
def test_a_round_goes_on_without_a_client_that_sends_nonsense(spoil, why, caplog, monkeypatch):
    result = run_on(spoilt(1, spoil, index=1), tables())
    assert participants(result) == [3, 2, 3]
    assert why in caplog.text
    assert same(result, survivors(monkeypatch, tables(), missing={(1, "train"): {1}}))


@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "consent", "unmask"])
def test_a_secure_sum_goes_on_without_a_client_that_is_silent_at_any_stage(stage, monkeypatch):
    noise = {"name": "discrete_gaussian", "insecure_noise_seed": 7, **NOISE}
    chosen = tables(secure={"survivors": 0.6}, privacy=noise, rounds=1)
    result = run_on(spoilt(1, lambda reply: failed(reply, ErrorCode.NODE_UNAVAILABLE), stage=stage), chosen)
    assert participants(result) == [3 if stage in ("consent", "unmask") else 2]
    drawn = {**chosen, "joint": result.config.joint}
    assert same(result, survivors(monkeypatch, drawn, missing={(0, stage): {1}}))


def test_a_reply_of_an_earlier_round_is_not_taken_for_one_of_this(caplog):
    kept = []

    def keep(reply):
        kept.append(reply.content[RECORD]["payload"])
        return reply

    grid = spoilt(1, keep)
    first = grid.tamper
    grid.tamper = lambda request, reply: (
        changed(reply, payload=kept[0]) if kept and request.client == 1 else first(request, reply)
    )
    assert participants(run_on(grid, tables())) == [3, 2, 2]
    assert "round 2 goes on without client 1: it is for round 0, not 1." in caplog.text


MEMORIES = {
    "error feedback": tables({"name": "fedavg", "error_feedback": True}, rounds=4, codec={"name": "top_k", "size": 9}),
    "projection": tables({"name": "iterative", "form": "projection"}, rounds=4),
}


@pytest.mark.parametrize("kind", MEMORIES)
def test_what_a_client_kept_for_a_reply_that_was_lost_does_not_count(kind, monkeypatch):
    late = run_on(spoilt(1, lambda reply: failed(reply, ErrorCode.NODE_UNAVAILABLE), index=1), MEMORIES[kind])
    assert same(late, survivors(monkeypatch, MEMORIES[kind], missing={(1, "train"): {1}}))


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_client_that_lost_what_only_it_knew_goes_on_without(kind, monkeypatch):
    grid = FakeGrid()
    grid.tamper = lambda request, reply: grid.forget(NODES[1]) or reply if len(grid.requests) == 9 else reply
    forgetful = run_on(grid, MEMORIES[kind])
    assert same(forgetful, survivors(monkeypatch, MEMORIES[kind], missing={}, forgot={(2, "train"): {1}}))
    assert not same(forgetful, sketchfed.run(MEMORIES[kind]))


def test_a_client_that_is_told_again_and_then_falls_silent_is_late_like_any_other(caplog):
    grid = FakeGrid()

    def tamper(request, reply):
        if (request.stage, request.client, request.acknowledged) != ("train", 1, 0):
            return reply
        grid.forget(NODES[1])
        return changed(reply, status="unset") if len(request.agreement) == 32 else None

    grid.tamper = tamper
    assert participants(run_on(grid, tables())) == [3, 2, 2]
    assert "round 2 goes on without client 1: no reply came within 1 s." in caplog.text


def test_a_run_in_which_nobody_can_be_used_ends_with_a_reason():
    grid = FakeGrid(lambda request, reply: changed(reply, session=bytes(16)) if request.stage == "train" else reply)
    with pytest.raises(NoReplyError, match=r"asked for 3 times, and nobody answered: its reply cannot be used.*--resume"):
        run_on(grid, tables())


def test_a_run_whose_replies_are_all_wild_has_diverged():
    grid = FakeGrid(lambda request, reply: changed(reply, payload=b"garbage") if request.stage == "train" else reply)
    with pytest.raises(DivergedError, match=r"got no usable reply.*Steps are too long"):
        run_on(grid, tables())


@pytest.mark.parametrize(
    ("spoil", "first"),
    {
        "late": (lambda _: None, (0, 1, 2)),
        "lost": (lambda reply: failed(reply, ErrorCode.CLIENT_APP_CRASHED), (0, 1, 2)),
        "spoilt": (lambda reply: changed(reply, payload=b"garbage"), (0, 1, 2)),
        "replayed": (lambda reply: changed(reply, stage="hello"), (0, 1, 2)),
        "raised": (lambda reply: failed(reply, ErrorCode.CLIENT_APP_RAISED_EXCEPTION), (0, 2)),
    }.values(),
    ids=["late", "lost", "spoilt", "replayed", "raised"],
)
def test_a_client_that_may_have_sent_something_is_charged_for_it(tmp_path, spoil, first):
    result = run_on(spoilt(1, spoil), tables(privacy=NOISE), tmp_path / "run")
    assert participants(result) == [2, 3, 3]
    assert charged(tmp_path / "run") == [first, (0, 1, 2), (0, 1, 2)]


def test_a_node_that_refuses_what_is_offered_does_not_join(tmp_path):
    settings = {node: {"partition-id": client} for client, node in enumerate(NODES)}
    settings[NODES[1]]["epsilon"] = 0.5
    with pytest.raises(InputError, match=r"Node 102 does not take part: this node's policy refuses privacy\.epsilon = 5"):
        run_on(FakeGrid(settings=settings), tables(privacy={**NOISE, "epsilon": 5.0}), tmp_path / "run")


def test_the_traffic_of_a_run_adds_up_to_its_bytes(tmp_path):
    grid = spoilt(2, lambda _: grid.forget(NODES[2]), index=1)
    result = run_on(grid, tables("few bits, few participants, momentum", rounds=4), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / TRAFFIC).read_text().splitlines()]
    assert sum(line["payload_up"] for line in lines) == result.metrics[-1]["uplink_bytes"]
    assert all(line["content_up"] > line["payload_up"] for line in lines if line["answered"])
    assert all(line["content_down"] > line["payload_down"] for line in lines)
