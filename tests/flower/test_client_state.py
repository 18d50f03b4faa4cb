import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from sketchfed.algorithms import Replica
from sketchfed.flower.messages import NEVER
from sketchfed.flower.state import ClientState, Kept
from sketchfed.training import ClientMemory

SESSION, OTHER = b"a" * 16, b"b" * 16
START = Replica(round=0, weights=torch.zeros(3))


def after(index: int) -> Kept:
    """What a client keeps for its reply of a round."""
    replica = Replica(
        round=index, weights=torch.full((3,), float(index)), velocity=torch.ones(3), moments={"mean": torch.ones(3)}
    )
    return Kept(made=index, replica=replica, memory=ClientMemory(owed=torch.full((3,), -float(index))))


def state(*kept: tuple[int, int]) -> ClientState:
    """A client that kept something for rounds, with what the server acknowledged before each."""
    made = ClientState(RecordDict(), SESSION)
    for acknowledged, index in kept:
        made.settled(acknowledged, START)
        made.keep(after(index))
    return made


def test_a_new_client_begins_at_the_start():
    kept = state().settled(NEVER, START)
    assert (kept.made, kept.replica, kept.memory) == (NEVER, START, ClientMemory())


def test_what_was_kept_counts_when_its_reply_was_used():
    kept = state((NEVER, 0)).settled(0, START)
    assert kept.made == 0
    assert kept.memory.owed.equal(after(0).memory.owed)
    assert kept.replica.weights.equal(after(0).replica.weights)
    assert kept.replica.velocity.equal(torch.ones(3))
    assert kept.replica.moments["mean"].equal(torch.ones(3))


def test_what_was_kept_for_a_reply_that_was_not_used_is_dropped():
    twice = state((NEVER, 0), (0, 1))
    assert twice.settled(0, START).made == 0
    assert twice.settled(1, START) == Kept(replica=START), "it cannot come back"


def test_a_first_reply_that_was_not_used_leaves_nothing():
    assert state((NEVER, 0)).settled(NEVER, START) == Kept(replica=START)


def test_asking_twice_changes_nothing():
    kept = state((NEVER, 0), (0, 3))
    assert kept.settled(3, START).made == kept.settled(3, START).made == 3


def test_a_client_that_cannot_have_what_the_server_counts_on_begins_anew():
    for acknowledged in (1, 5):
        assert state((NEVER, 0)).settled(acknowledged, START) == Kept(replica=START)
    assert state((NEVER, 0)).settled(4, None) == Kept(replica=None)


def test_a_server_that_went_back_finds_only_what_counted_then():
    kept = state((NEVER, 0), (0, 1))
    assert kept.settled(1, START).made == 1
    assert kept.settled(0, START) == Kept(replica=START)


def test_state_lasts_in_the_records_of_its_session():
    records = RecordDict()
    ClientState(records, SESSION).agreement = b"agreed"
    ClientState(records, SESSION).keep(after(0))
    assert ClientState(records, SESSION).agreement == b"agreed"
    assert ClientState(records, SESSION).settled(0, START).made == 0


def test_another_session_forgets_all_of_it():
    records = RecordDict({"of the app": ConfigRecord({"its": 1})})
    before = ClientState(records, SESSION)
    before.agreement = b"agreed"
    before.keep(after(0))
    other = ClientState(records, OTHER)
    assert (other.agreement, other.settled(0, START)) == (b"", Kept(replica=START))
    assert ClientState(records, SESSION).agreement == b""
    assert records["of the app"] == ConfigRecord({"its": 1}), "what is not ours stays"


@pytest.mark.parametrize("damage", [b"no tensors", b"\0" * 100, 7])
def test_what_cannot_be_read_is_as_good_as_lost(damage):
    records = RecordDict()
    kept = ClientState(records, SESSION)
    kept.keep(after(0))
    records["sketchfed.kept"] = ConfigRecord({"pending": damage, "committed": damage})
    assert kept.settled(0, START) == Kept(replica=START)
