import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid import HttpGrid

from sketchfed.flower.arrivals import Arrivals

pytestmark = pytest.mark.usefixtures("in_a_run")


class Link:
    """A SuperLink that hands out each reply once, and its parts as far as they came."""

    def __init__(self, *replies):
        self.replies, self.confirmed = list(replies), []
        self.parts = {name: part.deflate() for reply in replies for name, part in get_all_nested_objects(reply).items()}

    def PullMessages(self, request):  # noqa: N802
        given = [reply for reply in self.replies if reply.metadata.reply_to_message_id in request.message_ids]
        self.replies = [reply for reply in self.replies if reply not in given]
        return PullAppMessagesResponse(
            messages_list=map(message_to_proto, given), message_object_trees=map(get_object_tree, given)
        )

    def PullObject(self, request):  # noqa: N802
        part = self.parts.get(request.object_id)
        return PullObjectResponse(object_found=part is not None, object_available=bool(part), object_content=part or b"")

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


def reply(number):
    message = Message(RecordDict({"said": ConfigRecord({"number": number})}), dst_node_id=7, message_type="train")
    message.metadata.__dict__["_message_id"] = number
    answer = Message(RecordDict({"said": ConfigRecord({"number": number})}), reply_to=message)
    answer.metadata.__dict__["_message_id"] = answer.object_id
    return answer


def arrivals(link):
    grid = HttpGrid(token="token")
    grid._client = link
    return Arrivals(grid)


def numbers(messages):
    return [message.content["said"]["number"] for message in messages]


def test_a_reply_of_which_a_part_is_missing_holds_up_no_other_and_comes_when_it_is_whole():
    half, whole = reply("half"), reply("whole")
    link = Link(half, whole)
    last = half.object_id
    kept, link.parts[last] = link.parts[last], b""
    arrived = arrivals(link)
    assert numbers(arrived.pulled(["half", "whole", "late"])) == ["whole"]
    assert arrived.pulled(["half", "late"]) == []
    link.parts[last] = kept
    assert numbers(arrived.pulled(["half", "late"])) == ["half"]
    assert link.confirmed == [whole.object_id, half.object_id]


def test_a_reply_whose_parts_were_given_up_is_an_error():
    lost = reply("lost")
    link = Link(lost)
    del link.parts[lost.object_id]
    (message,) = arrivals(link).pulled(["lost"])
    assert message.has_error()
    assert message.metadata.reply_to_message_id == "lost"
    assert link.confirmed == []
