import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from sketchfed.errors import WireError
from sketchfed.flower.messages import NEVER, RECORD, Record, Reply, Request

pytestmark = pytest.mark.usefixtures("in_a_run")
SESSION = bytes(range(16))
REQUEST = Request(session=SESSION, agreement=b"agreed", client=1, stage="train", acknowledged=NEVER, payload=b"task")
REPLY = Reply.to(REQUEST, b"answer")
BOTH = pytest.mark.parametrize("record", [REQUEST, REPLY], ids=["request", "reply"])


def message(records: RecordDict) -> Message:
    return Message(records, dst_node_id=1, message_type="train")


def holding(record: Record, **fields: object) -> Message:
    """The message of a record with some fields changed, or without those that are None."""
    values = {**record.to_records()[RECORD], **fields}
    return message(RecordDict({RECORD: ConfigRecord({key: value for key, value in values.items() if value is not None})}))


@BOTH
def test_a_record_arrives_as_it_was_sent(record):
    assert type(record).of(message(record.to_records())) == record


@BOTH
def test_a_message_without_the_record_is_refused(record):
    others = RecordDict({"other": ConfigRecord({}), "arrays": ArrayRecord()})
    for records, held in ((RecordDict(), "none"), (others, "other")):
        with pytest.raises(WireError, match=held):
            type(record).of(message(records))
    with pytest.raises(WireError, match="none"):
        type(record).of(message(RecordDict({RECORD: ArrayRecord()})))


@BOTH
def test_a_field_too_many_or_too_few_is_refused(record):
    for fields in ({"extra": 1}, *({name: None} for name in record.to_records()[RECORD])):
        with pytest.raises(WireError, match="has the fields session"):
            type(record).of(holding(record, **fields))


@BOTH
def test_a_field_of_another_type_is_refused(record):
    for name, value in record.to_records()[RECORD].items():
        for other in (True, 1, 0.5, "text", b"bytes", [1, 2], [b"bytes"]):
            if type(other) is not type(value):
                with pytest.raises(WireError, match=f"field '{name}'"):
                    type(record).of(holding(record, **{name: other}))


@BOTH
def test_a_session_of_another_length_is_refused(record):
    for session in (b"", SESSION[1:], SESSION * 2):
        with pytest.raises(WireError, match="16 bytes"):
            type(record).of(holding(record, session=session))


def test_a_status_that_does_not_exist_is_refused_and_not_repeated_at_length():
    with pytest.raises(WireError, match="done, refused, unset") as error:
        Reply.of(holding(REPLY, status="x" * 10_000))
    assert len(str(error.value)) < 200


def test_a_reply_must_answer_the_request():
    assert REPLY.check(REQUEST) is REPLY
    for name, other in {"session": bytes(16), "client": 2, "stage": "keys"}.items():
        with pytest.raises(WireError, match=f"answers for {name}"):
            Reply.of(holding(REPLY, **{name: other})).check(REQUEST)


def test_the_reason_of_a_refusal_is_readable_whatever_came():
    assert Reply.to(REQUEST, "too little ε".encode(), "refused").reason == "too little ε"
    assert len(Reply.to(REQUEST, b"\xff" * 10_000, "refused").reason) == 1000
