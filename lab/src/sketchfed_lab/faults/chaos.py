"""A ClientApp that fails on purpose, for rehearsals: the same client, and around it a script of faults.

The script is a JSON list of rules in the file that a node's setting `chaos` names; it is read for every message, so that it can
change while a run goes on. The first rule that fits a message has its fault happen. What was served, and with which fault, is
written beside the script, a line a message: `script.json` has `script.0.jsonl` for client 0.

    [{"client": 1, "stage": "train", "round": 2, "fault": "truncate"},
     {"fault": ["raise", "sleep"], "share": 0.1, "seed": 7, "seconds": 20}]

Nodes never run this unless the server's app names it, as that of `rehearsing` does.
"""

import json
import os
import random
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supernode.runtime import run_clientapp
from torch import Tensor

from sketchfed.flower import Reply, Request, make_client_app
from sketchfed.secure import Terms
from sketchfed.wire import Packet, pack, split, unpack

Fault = Literal[
    "raise",  # the client raises
    "die",  # its process gets SIGKILL
    "half",  # its process gets SIGKILL while it sends its reply
    "sleep",  # it answers `seconds` later
    "forget",  # it has lost what it kept between messages
    "truncate",  # half of the reply is missing
    "replay",  # the payload is that of its reply before to the same stage, if there was one
    "stranger",  # the reply claims to be another client's
    "elsewhere",  # the reply claims to come from another node
    "garbage",  # the reply is a record that nobody asked for
    "round",  # the packet says another round
    "shape",  # the packet lacks a number
    "nan",  # the packet has a number that is none
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
OF_TRAINING: tuple[Fault, ...] = ("round", "shape", "nan")
"""Those that need a packet with numbers: they happen where clients send what they learnt in the open, and nowhere else."""

_LAST, _SUM = "chaos.last", "chaos.sum"
_MOST = 2**20
_PREFIX = 20
"""Bytes before the header of a packet; the last four of them are the checksum of all others (`docs/wire.md`)."""


class Rule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which messages a fault happens to: those that have all that is given here."""

    fault: Fault | tuple[Fault, ...]
    """Of several, one by chance."""
    client: int | None = None
    stage: str | None = None
    round: int | None = None
    """Counted from 0."""
    times: int | None = None
    """At most so often at each client."""
    share: float = 1.0
    """Of the messages that fit, by chance."""
    seed: int = 0
    seconds: float = 5.0
    """How long `sleep` takes."""

    def fits(self, request: Request, index: int) -> bool:
        wanted = ((self.client, request.client), (self.stage, request.stage), (self.round, index))
        return request.stage != "hello" and all(own in (None, given) for own, given in wanted)

    def drawn(self, request: Request, index: int, place: int, served: Sequence[dict[str, Any]]) -> Fault | None:
        """The fault that happens to a message, if one does; `served` is what its client did before, `place` this rule's."""
        if not self.fits(request, index):
            return None
        if self.times is not None and sum(line["rule"] == place for line in served) >= self.times:
            return None
        chance = random.Random(f"{self.seed} {request.client} {len(served)}")
        faults = (self.fault,) if isinstance(self.fault, str) else self.fault
        possible = [fault for fault in faults if request.stage == "train" or fault not in OF_TRAINING]
        return chance.choice(possible) if possible and chance.random() < self.share else None


def chaos(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod that has the script's faults happen to whatever app it is put around."""
    request, path = Request.of(message), Path(str(context.node_config["chaos"]))
    index, record = _round(request, context), path.with_suffix(f".{request.client}.jsonl")
    served = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    fault, rule = _fault(path, request, index, served)
    line = {"stage": request.stage, "round": index, "fault": fault, "rule": None if rule is None else rule[0]}
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")
    if fault == "raise":
        raise RuntimeError("this client fails, as it was told to.")
    if fault == "die":
        _die()
    if fault == "half":
        run_clientapp.__dict__["push_objects"] = _die
    if fault == "sleep" and rule is not None:
        time.sleep(rule[1].seconds)
    if fault == "forget":
        context.state = RecordDict()
    reply = call_next(message, context)
    said = Reply.of(reply)
    before = context.state.config_records.get(_LAST, ConfigRecord()).get(said.stage, b"")
    if said.status == "done":
        context.state[_LAST] = ConfigRecord({**context.state.config_records.get(_LAST, {}), said.stage: said.payload})
    return _spoiled(message, reply, said, fault, before if isinstance(before, bytes) else b"")


app = make_client_app(chaos)


def _die(*_given: object, **_options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def rehearsing(folder: Path) -> Iterator[None]:
    """Runs that begin inside the block are runs of an app with this ClientApp, whose files are written to `folder`."""
    from sketchfed.flower import app_with, submitting  # clients do without them, and they take them a while

    with submitting(app_with("sketchfed_lab.faults.chaos:app", folder)):
        yield


def _fault(
    path: Path, request: Request, index: int, served: Sequence[dict[str, Any]]
) -> tuple[Fault | None, tuple[int, Rule] | None]:
    rules = msgspec.json.decode(path.read_bytes(), type=list[Rule]) if path.exists() else []
    for place, rule in enumerate(rules):
        if (fault := rule.drawn(request, index, place, served)) is not None:
            return fault, (place, rule)
    return None, None


def _round(request: Request, context: Context) -> int:
    """The round that a request is about; -1 where it does not say, and the client does not remember."""
    if request.stage == "hello":
        return -1
    if request.stage == "keys":
        index = Terms.from_packet(unpack(request.payload)).round
        context.state[_SUM] = ConfigRecord({"round": index})
        return index
    if request.stage in ("train", "evaluate", "masked"):
        last = unpack(split(request.payload, most=_MOST)[-1])
        return int(last.scalars["round"]) + (last.kind not in ("begin", "snapshot"))
    return int(str(context.state.config_records.get(_SUM, ConfigRecord()).get("round", -1)))


def _spoiled(message: Message, reply: Message, said: Reply, fault: Fault | None, before: bytes) -> Message:
    """What leaves the client instead of its reply."""
    if fault == "garbage":
        return Message(RecordDict({"weather": ConfigRecord({"rain": True})}), reply_to=message)
    if fault == "elsewhere":
        reply.metadata.__dict__["_src_node_id"] += 1
        return reply
    if fault == "stranger":
        said = replace(said, client=said.client + 1)
    elif fault == "truncate":
        said = replace(said, payload=said.payload[: len(said.payload) // 2])
    elif fault == "replay":
        said = replace(said, payload=before or said.payload)
    elif fault in OF_TRAINING and said.status == "done":
        said = replace(said, payload=_SPOILED[fault](said.payload))
    return Message(said.to_records(), reply_to=message)


def _other_round(payload: bytes) -> bytes:
    packet = unpack(payload)
    return pack(packet.stamped(round=int(packet.scalars.get("round", 0)) + 7))


def _other_shape(payload: bytes) -> bytes:
    packet = unpack(payload)
    arrays = {name: array.flatten()[:-1] if isinstance(array, Tensor) else array for name, array in packet.arrays.items()}
    return pack(Packet(kind=packet.kind, arrays=arrays, seed=packet.seed, scalars=packet.scalars))


def _not_a_number(payload: bytes) -> bytes:
    """`pack` refuses such packets, so they are made by hand: all bits of the last number are set, and the checksum is right."""
    head, rest = payload[: _PREFIX - 4], payload[_PREFIX:-8] + b"\xff" * 8
    return head + struct.pack("<I", zlib.crc32(rest, zlib.crc32(head))) + rest


_SPOILED: dict[Fault, Callable[[bytes], bytes]] = {"round": _other_round, "shape": _other_shape, "nan": _not_a_number}
