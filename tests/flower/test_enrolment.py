import json

import pytest
from fake_grid import NODES, POLICY, FakeGrid, changed, failed, fresh_context, tables
from flwr.common.constant import ErrorCode

from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.flower.desk import write_identity
from sketchfed.flower.enrolment import enrolled, returned
from sketchfed.flower.messages import RECORD

pytestmark = pytest.mark.usefixtures("in_a_run")
SESSION = b"s" * 16
CONFIG = load_config(tables())


def members(grid: FakeGrid, clients: int = 3, wait: float = 0.1):
    return enrolled(grid, CONFIG, session=SESSION, clients=clients, wait=wait)


def saying(node: int, **others: object) -> FakeGrid:
    """A grid on which one node says something else of itself; None for words that are left out."""

    def tamper(_, reply):
        if reply.metadata.src_node_id != node:
            return reply
        said = json.loads(reply.content[RECORD]["payload"]) | others
        return changed(reply, payload=json.dumps({key: value for key, value in said.items() if value is not None}).encode())

    return FakeGrid(tamper)


def test_nodes_are_the_clients_whose_partition_they_have():
    grid = FakeGrid(settings={node: {"partition-id": client} for node, client in zip(NODES, (2, 0, 1), strict=True)})
    found = members(grid)
    assert [member.node for member in found] == [102, 103, 101]
    assert [member.examples for member in found] == [10, 11, 12]
    assert not any(member.own for member in found)
    assert len({member.identity for member in found}) == 3


def test_nodes_without_a_partition_get_the_numbers_that_are_left_in_the_order_of_their_ids():
    own = {"data": "own_data:load"}
    grid = FakeGrid(settings={103: own, 101: own, 102: {**own, "partition-id": 0}})
    found = members(grid)
    assert [member.node for member in found] == [102, 101, 103]
    assert all(member.own for member in found)


def test_no_more_nodes_take_part_than_there_are_clients():
    own = {"data": "own_data:load"}
    assert [member.node for member in members(FakeGrid(settings=dict.fromkeys(NODES, own)), clients=2)] == [101, 102]


def test_of_two_nodes_with_one_partition_the_first_is_the_client(caplog):
    grid = FakeGrid(settings={101: {"partition-id": 1}, 102: {"partition-id": 1}, 103: {"partition-id": 0}})
    assert [member.node for member in members(grid, clients=2)] == [103, 101]
    with pytest.raises(InputError, match=r"2 of data.clients = 3 nodes joined .* same partition-id count once"):
        members(grid)


def test_nodes_that_come_later_are_waited_for():
    late = FakeGrid(settings={node: {"partition-id": client} for client, node in enumerate(NODES[:2])})

    def come(_, reply):
        late.contexts.setdefault(NODES[2], fresh_context(NODES[2], {"partition-id": 2, "policy": str(POLICY)}))
        return reply

    late.tamper = come
    assert [member.node for member in members(late, wait=10)] == list(NODES)
    assert len(late.requests) == 3, "nobody is asked twice"


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"version": "0.0.1"}, r"it has sketchfed 0\.0\.1.*Install the same version"),
        ({"identity": "ab" * 32}, "private half it does not know"),
        ({"signature": "ab" * 64}, "private half it does not know"),
        ({"identity": "ab" * 31}, "identity of 31 bytes"),
        ({"identity": "no hex"}, "nobody understands"),
        ({"examples": 0}, "0 examples"),
        ({"examples": "many"}, "nobody understands"),
        ({"examples": None}, "nobody understands"),
        ({"more": 1}, "nobody understands"),
    ],
    ids=str,
)
def test_a_node_that_says_something_wrong_takes_no_part_and_the_reason_is_told(others, why):
    with pytest.raises(InputError, match=rf"2 of data.clients = 3 .*Node 102 does not take part: .*{why}.*Start more"):
        members(saying(102, **others))


def test_an_identity_is_shown_for_one_run_and_one_node_only():
    first = FakeGrid()
    members(first)
    said = {reply.metadata.src_node_id: reply.content[RECORD]["payload"] for reply in first.replies}
    as_another_node = FakeGrid(lambda _, reply: changed(reply, payload=said[101]))
    with pytest.raises(InputError, match=r"1 of .* Node 102 .* private half"):
        members(as_another_node)
    in_another_run = FakeGrid(lambda _, reply: changed(reply, payload=said[reply.metadata.src_node_id]))
    with pytest.raises(InputError, match=r"0 of .* Node 101 .* private half"):
        enrolled(in_another_run, CONFIG, session=b"t" * 16, clients=3, wait=0.1)


def test_nodes_that_cannot_take_part_say_why(caplog):
    grid = FakeGrid(settings={101: {}, 102: {"partition-id": 7}, 103: {"data": "own_data:nothing"}})
    with pytest.raises(InputError, match=r"0 of data.clients = 3") as error:
        members(grid)
    for words in ("this node has no data", "this node is partition 7", "has no 'nothing'"):
        assert words in str(error.value)
        assert words in caplog.text


def test_a_node_that_fails_does_not_keep_the_others_out():
    grid = FakeGrid(
        lambda _, reply: failed(reply, ErrorCode.CLIENT_APP_CRASHED) if reply.metadata.src_node_id == 103 else reply
    )
    assert [member.node for member in members(grid, clients=2)] == [101, 102]


def test_without_any_node_there_is_no_run():
    with pytest.raises(InputError, match=r"0 of data.clients = 2 nodes joined within 0\.1 s"):
        members(FakeGrid(settings={}), clients=2)


def test_a_client_that_is_back_on_another_node_is_known_by_its_identity(tmp_path):
    write_identity(tmp_path / "key")
    grid = FakeGrid(settings={101: {"partition-id": 0, "identity": str(tmp_path / "key")}, 102: {"partition-id": 1}})
    before = members(grid, clients=2)
    grid.move(101, to=201)
    grid.move(102, to=202)
    back = returned(grid, [201, 202], before, session=SESSION, config=CONFIG)
    assert {client: member.node for client, member in back.items()} == {0: 201}, "node 202 has made itself a new identity"
    assert back[0].identity == before[0].identity
