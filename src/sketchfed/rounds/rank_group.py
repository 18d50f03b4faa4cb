"""The nodes of a graph on all ranks of a launch, as rank 0 sees them."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from sketchfed.errors import InputError, RankError, WireError
from sketchfed.rounds.peers import PeerGroup, PeerRound
from sketchfed.rounds.peers.group import mean_of
from sketchfed.rounds.peers.saved import needed_by
from sketchfed.rounds.rank_control import Control, LinkTransport
from sketchfed.rounds.rank_hub import Message
from sketchfed.rounds.rank_reports import (
    Report,
    merged,
    packed_answers,
    packed_report,
    packed_tensors,
    read_answers,
    read_report,
    read_tensors,
    read_weights,
)
from sketchfed.rounds.ranks import OnCall
from sketchfed.wire import Packet, number_named

log = logging.getLogger("sketchfed")

Read = TypeVar("Read")
_REPORT, _MOST = "report", 2**62


def check_root(group: PeerGroup, control: Control) -> None:
    """Raise `RankError` if no round can end any more, because the root of the tree lives on a rank that is gone."""
    home = control.layout.homes[group.root]
    if group.kind.rooted and home in control.links.gone:
        raise RankError(
            f"algorithm '{group.participant.algorithm.name}' takes its steps at node {group.root}, and its home, "
            f"{control.links.places[home]}, is gone. Resume the run from its last checkpoint. Or use algorithm 'gossip', which "
            "goes on without any node."
        )


class RankGroup(PeerGroup):
    """The nodes of rank 0, and what the other ranks report of theirs.

    Other ranks run `NodeRank`. Rank 0 tells them when a round begins, and asks for what is evaluated and saved. Rounds
    themselves pass between neighbours only. The nodes of a rank that is gone or late are left out, and `gone` names them.
    """

    def __init__(self, *arguments: Any, control: Control, on_traffic: OnCall, **options: Any) -> None:
        """`control` speaks to the other ranks. The other arguments are those of `PeerGroup`."""
        layout = control.layout
        super().__init__(*arguments, nodes=layout.nodes(0), transport=LinkTransport(control.links), **options)
        self._control, self._on_traffic = control, on_traffic
        self._next, self._number = 0, 0
        """The round before which the other ranks wait, and how many commands they have had there."""
        self._in_step = set(control.others)
        """The ranks that wait for rank 0."""
        self._found: dict[int, Tensor] = {}
        """The models of nodes on other ranks, when they were last asked for."""
        self._before, self._asked = self._counted(), ("", 0.0)
        """What was counted so far, and the last question, with the time at which it was asked."""

    @property
    def recording(self) -> bool:
        """Whether messages are recorded. Rank 0 does not see those between other ranks."""
        return False

    @recording.setter
    def recording(self, value: bool) -> None:
        if value:
            raise InputError(
                "rank 0 does not see what nodes on other ranks say to each other, so it cannot be recorded. Use engine.name = "
                "'local', where messages have the same bytes, or do without engine.record and on_exchange."
            )

    def round(self, index: int) -> PeerRound:
        check_root(self, self._control)
        start = time.monotonic()
        self._tell("round")
        own = super().round(index)
        seconds = {0: time.monotonic() - start}
        reports = self._read(
            self._control.collect(self._control.others, index, _REPORT, patient=False),
            lambda message, nodes: read_report(message, self.topology.at(index), nodes, steps=self._steps(index)),
        )
        self._next, self._number, self._found = index + 1, 0, {}
        self._in_step = {rank for rank, report in reports.items() if report.led}
        self._look_for_gone()
        found = merged([own, *(report.round for report in reports.values())])
        silent = [node for rank in self._control.others if rank not in reports for node in self._control.layout.nodes(rank)]
        found.unheard |= set(silent) - self.topology.at(index).away
        for rank, report in reports.items():
            seconds[rank] = report.seconds
        self._say("round", [self._control.layout.homes[node] for node in found.worked], seconds)
        return found

    def _steps(self, index: int) -> int:
        return len(self.kind.plan(self.topology.at(index), self.root))

    def _look_for_gone(self) -> None:
        layout = self._control.layout
        self.gone = sorted(node for rank in self._control.others if rank not in self._in_step for node in layout.nodes(rank))

    def _counted(self) -> dict[str, int]:
        control, links = self._control, self._control.links
        return {
            "payload_down": control.sent,
            "payload_up": control.received,
            "sent": links.moved_out,
            "received": links.moved_in,
        }

    def _say(self, stage: str, homes: Sequence[int], seconds: Mapping[int, float]) -> None:
        """Tell what passed since the last call, with the home of each node that took part."""
        ranks, before, self._before = range(self._control.layout.ranks), self._before, self._counted()
        moved = {name: now - before[name] for name, now in self._before.items()}
        times = [round(seconds.get(rank, 0.0), 4) for rank in ranks]
        self._on_traffic({"stage": stage, **moved, "clients": [homes.count(rank) for rank in ranks], "seconds": times})

    # Questions --------------------------------------------------------------------------------------------------------

    def _tell(self, kind: str, parts: Mapping[int, Sequence[bytes]] | None = None, **scalars: int) -> str:
        """Send all ranks a command. Return the stage in which they answer."""
        packet = Packet(kind=kind, arrays={}, scalars=scalars)
        messages = {rank: Message(packet, () if parts is None else parts[rank]) for rank in self._control.others}
        self._control.send(messages, self._next, f"command {self._number}")
        self._number += 1
        self._asked = kind, time.monotonic()
        return f"answer {self._number - 1}"

    def _answers(self, stage: str, read: Callable[[Message, Collection[int]], Read]) -> dict[int, Read]:
        """What the ranks that are in step answered. Those that did not answer are out of step until the next round."""
        found = self._read(self._control.collect(sorted(self._in_step), self._next, stage, patient=True), read)
        self._in_step &= found.keys()
        self._look_for_gone()
        kind, start = self._asked
        homes = [home for home in self._control.layout.homes if home in found]
        self._say(kind, homes, dict.fromkeys(found, time.monotonic() - start))
        return found

    def _read(self, messages: Mapping[int, Message], read: Callable[[Message, Collection[int]], Read]) -> dict[int, Read]:
        found = {}
        for rank, message in messages.items():
            try:
                found[rank] = read(message, self._control.layout.nodes(rank))
            except WireError as error:
                log.warning("%s said something that cannot be used: %s", self._control.links.places[rank], error)
        return found

    def mean(self) -> tuple[Tensor, float, int]:
        dim = self.participant.trainer.dim
        answers = self._answers(self._tell("weights"), lambda message, nodes: read_weights(message, nodes, dim))
        self._found = {node: weights for found in answers.values() for node, weights in found.items()}
        known = [*self.peers, *self._found]
        if not known:
            raise RankError(
                "all ranks that have nodes are gone, so there is no model. Resume the run from its last checkpoint."
            )
        return mean_of(known, self.weights)

    def weights(self, node: int) -> Tensor:
        return super().weights(node) if node in self.peers else self._found[node]

    def judged(self, nodes: Collection[int], index: int) -> tuple[dict[int, bytes], dict[int, str]]:
        stage = self._tell("judge", index=index)
        replies, reasons = super().judged([node for node in nodes if node in self.peers], index)
        for found, why in self._answers(stage, read_answers).values():
            replies |= found
            reasons |= why
        reasons |= dict.fromkeys(self.gone, "its rank is gone, or late")
        return {node: replies[node] for node in nodes if node in replies}, {n: reasons[n] for n in nodes if n in reasons}

    def tensors(self) -> dict[str, Tensor]:
        found = super().tensors()
        for answer in self._answers(self._tell("tensors"), lambda message, _: read_tensors(message)).values():
            found |= answer
        return found

    def restore(self, tensors: Mapping[str, Tensor], index: int) -> None:
        layout = self._control.layout
        parts = {rank: [packed_tensors(needed_by(layout.nodes(rank), tensors))] for rank in self._control.others}
        stage = self._tell("restore", parts, index=index)
        super().restore(tensors, index)
        for rank, (message,) in self._answers(stage, lambda message, _: [message]).items():
            if message.packet.kind != "restored":
                why = b"".join(message.parts).decode(errors="replace")
                raise ValueError(f"{self._control.links.places[rank]} cannot continue: {why}")
        if index != self._next:
            self._next, self._number = index, 0

    def close(self, why: str = "") -> None:
        """End the run on all ranks. `why` says what went wrong, if anything did."""
        self._tell("stop", {rank: [why.encode()] for rank in self._control.others})
        super().close()
        self._control.links.close()


class NodeRank:
    """What a rank other than 0 does in a run without a server: it runs the rounds of its nodes, and answers rank 0."""

    def __init__(self, group: PeerGroup, control: Control, *, rounds: int, guarded: bool) -> None:
        """`guarded` says that no round may run without rank 0, because it keeps the privacy ledger."""
        self.group, self._control, self._rounds, self._guarded = group, control, rounds, guarded

    def run(self) -> bool:
        """Run all rounds. Return whether rank 0 ended them. If it is gone, this rank goes on to the last round by itself."""
        index = number = 0
        while True:
            if (newest := self._control.links.newest(0)) > index + 1:
                log.warning("this rank was late, so its nodes were away in rounds %d to %d", index + 1, newest)
                index, number = newest, 0
            message = self._control.collect([0], index, f"command {number}", patient=True).get(0)
            if message is None or message.packet.kind == "round":
                if index >= self._rounds:
                    return False
                if message is None and self._guarded:
                    raise RankError("rank 0 is gone or late. It keeps the privacy ledger, so there are no rounds without it.")
                self._round(index, led=message is not None)
                index, number = index + 1, 0
            elif message.packet.kind == "stop":
                return True
            else:
                answer = self._answered(message)
                self._control.send({0: answer}, index, f"answer {number}")
                first = index
                if answer.packet.kind == "restored":
                    first = int(number_named(message.packet, "index", least=0, most=_MOST))
                index, number = first, number + 1 if first == index else 0

    def _round(self, index: int, *, led: bool) -> None:
        check_root(self.group, self._control)
        start = time.monotonic()
        found = self.group.round(index)
        report = Report(round=found, seconds=round(time.monotonic() - start, 4), led=led)
        self._control.send({0: packed_report(report)}, index, _REPORT)

    def _answered(self, message: Message) -> Message:
        """The answer to a question of rank 0."""
        kind, group = message.packet.kind, self.group
        if kind == "weights":
            models = {str(node): group.weights(node) for node in group.peers}
            return Message(Packet(kind=kind, arrays={}), [packed_tensors(models)])
        if kind == "tensors":
            return Message(Packet(kind=kind, arrays={}), [packed_tensors(group.tensors())])
        if kind == "judge":
            index = int(number_named(message.packet, "index", least=0, most=_MOST))
            return packed_answers(*group.judged(list(group.peers), index))
        if kind != "restore":
            raise RankError(f"rank 0 sent '{kind}', which has no place in a run. Start all ranks with one version.")
        try:
            group.restore(read_tensors(message), int(number_named(message.packet, "index", least=0, most=_MOST)))
        except (KeyError, TypeError, ValueError) as error:  # also WireError
            return Message(Packet(kind="refused", arrays={}), [str(error).encode()])
        return Message(Packet(kind="restored", arrays={}))
