"""Collects replies as they arrive over Flower's grid. No reply holds up the others."""

from collections.abc import Sequence
from typing import cast

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid import HttpGrid


class _PartlyThereError(Exception):
    """A reply that was announced, but whose parts have not all arrived."""


class Arrivals:
    """The replies to some messages.

    A node first announces its reply and then sends it, part by part. If the node dies in between, Flower's `pull_messages`
    waits for the rest: three minutes, or as long as somebody sends it slowly. All other replies wait behind it and expire.
    Here, the next call looks at it again.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._announced: dict[str, tuple[Metadata, ObjectTree]] = {}

    def pulled(self, numbers: Sequence[str]) -> list[Message]:
        """Return complete replies to messages with these numbers, each of them once."""
        if not isinstance(self._grid, HttpGrid):
            return list(self._grid.pull_messages(numbers))
        if asked := [number for number in numbers if number not in self._announced]:
            answer = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                self._announced[proto.metadata.reply_to_message_id] = metadata_from_proto(proto.metadata), tree
        found = []
        for number in numbers:
            if number in self._announced:
                try:
                    found.append(self._whole(self._grid, number))
                except _PartlyThereError:
                    continue
                del self._announced[number]
        return found

    def _whole(self, grid: HttpGrid, number: str) -> Message:
        metadata, tree = self._announced[number]
        client, node, run_id = grid._runtime_client, grid.node, metadata.run_id
        pull = make_pull_object_fn_protobuf(client.PullObject, node, run_id)

        def part(name: str) -> bytes:
            try:
                return pull(name)
            except ObjectUnavailableError as error:
                raise _PartlyThereError from error

        try:
            contents = pull_objects([branch.object_id for branch in iterate_object_tree(tree)], part)
        except ObjectPullError as error:
            return make_message(metadata=metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error)))
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=metadata.message_id)
        )
        message = cast(Message, inflate_object_from_contents(metadata.message_id, contents))
        message.metadata.__dict__["_message_id"] = metadata.message_id
        return message
