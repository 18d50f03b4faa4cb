import json
from contextlib import nullcontext

import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import Context, Message, RecordDict

from sketchfed.errors import InputError, WireError
from sketchfed.flower import Reply, Request, SuperLink, connection
from sketchfed.flower.messages import NEVER
from sketchfed.wire import Packet, pack, unpack
from sketchfed_lab.faults.chaos import FAULTS, OF_TRAINING, Rule, chaos, rehearsing

pytestmark = pytest.mark.usefixtures("in_a_run")

PACKET = Packet(kind="sketched", arrays={"values": torch.arange(6.0)}, scalars={"round": 3})


def request(stage="train", client=1, round=3):
    task = pack(Packet(kind="begin", arrays={}, scalars={"round": round}))
    return Request(session=b"s" * 16, agreement=b"", client=client, stage=stage, acknowledged=NEVER, payload=task)


def answered(tmp_path, *rules, state=None, asked=None):
    """The reply to a request, under a script; the client answers with `PACKET`."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps(rules))
    context = Context(run_id=1, node_id=7, node_config={"chaos": str(script)}, state=state or RecordDict(), run_config={})
    message = Message((asked or request()).to_records(), dst_node_id=7, message_type="train")

    def client(message, _context):
        return Message(Reply.to(Request.of(message), pack(PACKET)).to_records(), reply_to=message)

    return chaos(message, context, client)


def test_a_rule_fits_what_has_all_that_it_names():
    rule = Rule(fault="raise", client=1, stage="train", round=3)
    assert rule.fits(request(), 3)
    assert not rule.fits(request(client=2), 3)
    assert not rule.fits(request(stage="masked"), 3)
    assert not rule.fits(request(), 4)
    assert not Rule(fault="raise").fits(request(stage="hello"), 3), "nodes that do not join cannot fail later"


def test_a_rule_strikes_as_often_as_it_says():
    struck = [{"rule": 0}, {"rule": 0}]
    rule = Rule(fault="raise", times=2)
    assert rule.drawn(request(), 3, 0, struck[:1]) == "raise"
    assert rule.drawn(request(), 3, 0, struck) is None
    share = Rule(fault=FAULTS, share=0.25, seed=5)
    drawn = [share.drawn(request(), 3, 0, [{"rule": 1}] * place) for place in range(4_000)]
    hit = [fault for fault in drawn if fault]
    assert abs(len(hit) - 1_000) < 150, "five and a half standard deviations: one run in ten million"
    assert set(hit) == set(FAULTS)
    assert not {share.drawn(request(stage="keys"), 3, 0, [{}] * place) for place in range(200)} & set(OF_TRAINING)


def test_replies_are_spoiled_as_the_script_says(tmp_path):
    payloads = {fault: Reply.of(answered(tmp_path, {"fault": fault})).payload for fault in (*OF_TRAINING, "truncate", "sleep")}
    assert unpack(payloads["sleep"]) == PACKET
    assert unpack(payloads["round"]).scalars["round"] == 10
    assert unpack(payloads["shape"]).arrays["values"].shape == (5,)
    with pytest.raises(WireError, match="NaN"):
        unpack(payloads["nan"])
    with pytest.raises(WireError, match="truncated"):
        unpack(payloads["truncate"])
    assert Reply.of(answered(tmp_path, {"fault": "stranger"})).client == 2
    with pytest.raises(WireError, match="weather"):
        Reply.of(answered(tmp_path, {"fault": "garbage"}))
    assert answered(tmp_path, {"fault": "elsewhere"}).metadata.src_node_id == 8
    with pytest.raises(RuntimeError, match="as it was told to"):
        answered(tmp_path, {"fault": "raise"})


def test_what_was_served_is_written_down(tmp_path):
    answered(tmp_path, {"fault": "truncate", "round": 3, "times": 1})
    answered(tmp_path, {"fault": "truncate", "round": 3, "times": 1})
    lines = [json.loads(line) for line in (tmp_path / "script.1.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["round"], line["fault"]) for line in lines] == [("train", 3, "truncate"), ("train", 3, None)]


def test_only_rehearsals_run_an_app_that_fails(tmp_path, monkeypatch):
    submitted = []

    def refusing(_link, _control, folder, _series):
        submitted.append((folder / "pyproject.toml").read_text())
        raise InputError("that is all we wanted to know.")

    monkeypatch.setattr(connection, "_start", refusing)
    link = SuperLink(address="127.0.0.1:1", insecure=True)
    for around in (rehearsing(tmp_path / "app"), nullcontext()):
        with around, pytest.raises(InputError, match="all we wanted"), connection.joined(link):
            pass
    assert ["sketchfed_lab.faults.chaos:app" in text for text in submitted] == [True, False]
