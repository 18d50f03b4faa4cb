"""What a rank reports of a round of its nodes. Rank 0 checks all that it reads."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor

from sketchfed.errors import WireError
from sketchfed.graphs import Links
from sketchfed.rounds.peers import Hop, PeerRound
from sketchfed.rounds.peers.saved import everywhere, once
from sketchfed.rounds.rank_hub import Message, integers
from sketchfed.wire import Packet, expect_kind, number_named, tensor_named

_MOST_BYTES, _MOST_SECONDS, _LONGEST = 2**50, 1e9, 400


@dataclass(frozen=True, kw_only=True)
class Report:
    """A round of a rank's nodes."""

    round: PeerRound
    seconds: float
    led: bool
    """Whether the rank heard rank 0 before the round. Otherwise it has gone on by itself, and answers no questions about it."""


def packed_report(report: Report) -> Message:
    found, seconds = report.round, report.seconds
    arrays = {
        "sent": _rows((*pair, size) for pair, size in found.sent.items()),
        "arrived": _rows((*pair, size) for pair, size in found.arrived.items()),
        "refused": _rows((*pair, 0) for pair in found.refused),
        "failed": _numbers(found.failed),
        "worked": _numbers(sorted(found.worked)),
        "spoken": _numbers(sorted(found.spoken)),
    }
    texts = [str(why)[:_LONGEST] for why in (*found.failed.values(), *found.refused.values())]
    packet = Packet(kind="report", arrays=arrays, scalars={"lost": found.lost, "seconds": seconds, "led": report.led})
    return Message(packet, [json.dumps(texts).encode()])


def read_report(message: Message, links: Links, own: Collection[int], *, steps: int) -> Report:
    """The report of a rank on which the nodes `own` live. Raises `WireError` unless it can be one of a round on these links.

    `steps` is the number of steps of the round.
    """
    packet, nodes = expect_kind(message.packet, "report"), links.graph.nodes
    sent, arrived = (_counted(packet, name, links, own, end) for end, name in enumerate(("sent", "arrived")))
    refused = list(_counted(packet, "refused", links, own, 1))
    failed, worked = (integers(packet, name, most=nodes - 1) for name in ("failed", "worked"))
    spoken = integers(packet, "spoken", most=max(0, steps - 1))
    present = set(own) - links.away
    if len({*failed, *worked}) != len(failed) + len(worked) or not {*failed, *worked} <= present:
        raise WireError("a report must say once of each node of its rank whether it trained or failed.")
    if not {sender for sender, _ in sent} | {receiver for _, receiver in (*arrived, *refused)} <= set(worked):
        raise WireError("a report counts messages of nodes that did not take part.")
    most = steps * sum(len(links.graph.neighbours(node)) for node in present)
    lost = int(number_named(packet, "lost", least=0, most=most))
    seconds, led = number_named(packet, "seconds", least=0, most=_MOST_SECONDS), packet.scalars.get("led")
    if type(led) is not bool:
        raise WireError("a report must say whether its rank heard rank 0.")
    texts = _texts(message, len(failed) + len(refused))
    return Report(
        round=PeerRound(
            sent=sent,
            arrived=arrived,
            lost=lost,
            refused=dict(zip(refused, texts[len(failed) :], strict=True)),
            failed=dict(zip(failed, texts, strict=False)),
            worked=set(worked),
            spoken=set(spoken),
        ),
        seconds=float(seconds),
        led=led,
    )


def merged(rounds: Iterable[PeerRound]) -> PeerRound:
    """What happened in a round, from what each rank knows."""
    whole = PeerRound()
    for each in rounds:
        for name in ("sent", "arrived", "refused", "failed", "worked", "spoken", "unheard"):
            getattr(whole, name).update(getattr(each, name))
        whole.lost += each.lost
    for name in ("sent", "arrived", "refused", "failed"):
        setattr(whole, name, dict(sorted(getattr(whole, name).items())))
    return whole


def packed_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in once(tensors).items()})


def read_tensors(message: Message) -> dict[str, Tensor]:
    """The tensors in the only part of a message. Raises `WireError` for anything else."""
    try:
        (data,) = message.parts
        return everywhere(safetensors.torch.load(data))
    except Exception as error:  # safetensors raises several kinds
        raise WireError("tensors that a rank sent are damaged. Start all ranks with one version.") from error


def read_weights(message: Message, own: Collection[int], dim: int) -> dict[int, Tensor]:
    """The models of the nodes of a rank. Raises `WireError` unless all of them are there, with `dim` numbers each."""
    found = read_tensors(message)
    if found.keys() != {str(node) for node in own} or any(
        each.shape != (dim,) or each.dtype != torch.float32 for each in found.values()
    ):
        raise WireError(f"it must hold the models of nodes {', '.join(map(str, sorted(own)))}, of {dim:,} numbers each.")
    return {int(name): each for name, each in found.items()}


def packed_answers(replies: Mapping[int, bytes], reasons: Mapping[int, str]) -> Message:
    """What nodes measured on their own data, and why others did not."""
    arrays = {"replies": _numbers(replies), "reasons": _numbers(reasons)}
    texts = json.dumps([why[:_LONGEST] for why in reasons.values()]).encode()
    return Message(Packet(kind="answers", arrays=arrays), [texts, *replies.values()])


def read_answers(message: Message, own: Collection[int]) -> tuple[dict[int, bytes], dict[int, str]]:
    """What `packed_answers` was given. The replies themselves are not looked at."""
    packet, last = expect_kind(message.packet, "answers"), max(own, default=0)
    replies = integers(packet, "replies", most=last, count=max(0, len(message.parts) - 1))
    reasons = integers(packet, "reasons", most=last)
    if not {*replies, *reasons} <= set(own):
        raise WireError("a rank answered for nodes that live elsewhere.")
    texts = _texts(message, len(reasons))
    return dict(zip(replies, message.parts[1:], strict=True)), dict(zip(reasons, texts, strict=True))


def _counted(packet: Packet, name: str, links: Links, own: Collection[int], end: int) -> dict[Hop, int]:
    """Numbers by sender and receiver, one of whom must live on the rank."""
    array = packet.arrays.get(name)
    count = len(array) if isinstance(array, Tensor) and array.ndim == 2 else 0
    rows = tensor_named(packet, name, shape=(count, 3), dtype=torch.int64).tolist()
    found = {(sender, receiver): size for sender, receiver, size in rows}
    for (sender, receiver), size in found.items():
        ends = (sender, receiver)
        if not (ends[end] in own and 0 <= sender < links.graph.nodes and 0 <= size <= _MOST_BYTES):
            raise WireError(f"'{name}' of a report counts messages of nodes that live elsewhere.")
        if receiver not in links.graph.neighbours(sender):
            raise WireError(f"'{name}' of a report counts messages over a link that does not work.")
    if len(found) != count:
        raise WireError(f"'{name}' of a report counts the messages between two nodes twice.")
    return found


def _texts(message: Message, count: int) -> list[str]:
    try:
        found = json.loads(message.parts[0])
    except (ValueError, RecursionError, IndexError) as error:
        raise WireError("the reasons in what a rank said are no texts.") from error
    if not isinstance(found, list) or len(found) != count or not all(isinstance(text, str) for text in found):
        raise WireError("the reasons in what a rank said are not one text each.")
    return [text[:_LONGEST] for text in found]


def _rows(rows: Iterable[tuple[int, int, int]]) -> Tensor:
    return torch.tensor(list(rows), dtype=torch.int64).reshape(-1, 3)


def _numbers(numbers: Iterable[int]) -> Tensor:
    return torch.tensor(list(numbers), dtype=torch.int64)
