import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_grid import tables

from sketchfed.config import load_config
from sketchfed.errors import InputError, SecureSumError, StorageError
from sketchfed.flower.desk import Desk, read_directory, write_identity
from sketchfed.flower.messages import NEVER, Request
from sketchfed.seeds import PublicSeed

pytestmark = pytest.mark.usefixtures("in_a_run")
SESSION = b"s" * 16
NOISE = {"noise_multiplier": 4.0, "epsilon": 3.0, "delta": 1e-4}


def protection(**others: object):
    config = load_config(tables({"name": "fedavg", **others.pop("algorithm", {})}, **others))
    return config.completed(dim=43, sizes=[10, 11, 12]).protection(dim=43, sizes=[10, 11, 12])


def release(desk: Desk, index: int = 0, session: bytes = SESSION, algorithm: object = None, **others: object):
    made = protection(privacy={**NOISE, **others}, algorithm=algorithm or {})
    request = Request(session=session, agreement=b"", client=0, stage="train", acknowledged=NEVER, payload=b"")
    return desk.release(made, request, index, PublicSeed(0))


def answers(desk: Desk, limit: int = 40, **others: object) -> int:
    """How often a node may answer before it refuses."""
    for number in range(limit):
        found = release(desk, number, **others)
        try:
            with desk.store.transaction() as rows:
                found.spend(rows)
        except InputError:
            return number
    return limit


def test_an_identity_is_made_once_for_the_eyes_of_its_owner(tmp_path):
    first = Desk(7, {}).identity
    assert Desk(7, {}).identity == first
    assert Desk(8, {}).identity != first
    (file,) = tmp_path.glob("flwr/sketchfed/node-7/*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_messages_that_come_at_once_agree_on_one_identity():
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: Desk(7, {}).identity.public, range(64)))) == 1


def test_an_identity_can_be_named_and_is_then_not_made(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read the identity .*mine\.key.*sketchfed flower identity"):
        _ = Desk(7, {"identity": str(tmp_path / "mine.key")}).identity
    made = write_identity(tmp_path / "mine.key")
    assert Desk(7, {"identity": str(tmp_path / "mine.key")}).identity == made


def test_an_identity_is_never_replaced(tmp_path):
    write_identity(tmp_path / "key")
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(StorageError, match="exists"):
        write_identity(tmp_path / "key")
    assert [file.read_bytes() for file in tmp_path.glob("key*")] == [before]


@pytest.mark.parametrize("content", ["", "zz", "ab" * 31, "ab" * 33])
def test_a_file_that_holds_no_identity_is_refused(tmp_path, content):
    (tmp_path / "key").write_text(content)
    with pytest.raises(StorageError, match="identity"):
        _ = Desk(7, {"identity": str(tmp_path / "key")}).identity


def test_a_node_without_a_directory_trusts_identities_when_it_first_sees_them(caplog):
    for _ in range(2):
        Desk(7, {}).check_directory({0: b"a" * 32, 1: b"b" * 32}, SESSION)
        Desk(7, {}).check_directory({0: b"b" * 32, 1: b"a" * 32}, b"t" * 16)
    assert "IDENTITIES CHANGED" not in caplog.text
    Desk(7, {}).check_directory({0: b"a" * 32, 1: b"x" * 32}, b"u" * 16)
    assert "IDENTITIES CHANGED: 1 of 2 clients" in caplog.text
    assert "client 1 had another identity before" in caplog.text


def test_a_policy_can_refuse_identities_that_were_never_seen(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('[demand]\nidentities = "known"\n')
    desk = Desk(7, {"policy": str(policy)})
    desk.check_directory({0: b"a" * 32}, SESSION)
    desk.check_directory({0: b"a" * 32}, b"t" * 16)
    refused = r"client 1 was never seen before.*policy\.toml:2: demand\.identities = known"
    for session in (b"u" * 16, b"u" * 16, b"v" * 16):
        with pytest.raises(SecureSumError, match=refused) as said:
            desk.check_directory({0: b"a" * 32, 1: b"x" * 32}, session)
        assert said.value.told == (
            "1 of 2 clients of this run have identities that this node does not know. It takes no part. "
            "(line 2 of the node's policy: demand.identities = known)"
        )


def test_an_identity_that_changed_is_warned_of_in_every_run(caplog):
    """A server that plays a client does not become known by having been warned of once."""
    first, changed, warned = {0: b"a" * 32, 1: b"b" * 32}, {0: b"a" * 32, 1: b"x" * 32}, []
    Desk(7, {}).check_directory(first, SESSION)
    for number in range(3):
        session, desk = bytes([number]) * 16, Desk(7, {})
        desk.check_directory(changed, session)
        warned.append(caplog.text.count("IDENTITIES CHANGED: 1 of 2 clients of this run have identities"))
        with desk.store.transaction() as rows:
            row = (desk.who, bytes([number]) * 32, session, 0.0)
            rows.execute("INSERT INTO sums (who, digest, session, seen) VALUES (?, ?, ?, ?)", row)
        desk.check_directory(changed, session)
    assert warned == [1, 2, 3]
    assert caplog.text.count("IDENTITIES CHANGED") == 3, "once in a run, not in each of its sums"
    assert "client 1 had another identity before, now 78787878" in caplog.text
    Desk(7, {}).check_directory(first, b"w" * 16)
    assert caplog.text.count("IDENTITIES CHANGED") == 3


def test_a_directory_of_the_node_must_have_the_same_keys(tmp_path):
    pinned = tmp_path / "directory"
    pinned.write_text(f"# who is who\n\n0 {(b'a' * 32).hex()}\n1 {(b'b' * 32).hex()}\n")
    assert read_directory(pinned) == {0: b"a" * 32, 1: b"b" * 32}
    desk = Desk(7, {"directory": str(pinned)})
    desk.check_directory({0: b"a" * 32, 1: b"b" * 32}, SESSION)
    for forged in ({0: b"a" * 32, 1: b"x" * 32}, {0: b"b" * 32, 1: b"a" * 32}, {0: b"a" * 32, 2: b"c" * 32}):
        with pytest.raises(SecureSumError, match="forged"):
            desk.check_directory(forged, SESSION)


@pytest.mark.parametrize("content", [None, "0", "zero aa", "0 zz", "0 aa bb"])
def test_a_directory_that_cannot_be_read_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "directory").write_text(content)
    with pytest.raises(StorageError, match="each line"):
        Desk(7, {"directory": str(tmp_path / "directory")}).check_directory({}, SESSION)


def test_a_nodes_own_books_refuse_what_the_budget_does_not_last_for():
    often = answers(Desk(7, {}))
    assert 1 < often < 40
    assert answers(Desk(7, {})) == 0, "it is on the disk"
    assert answers(Desk(8, {})) == often, "for each identity"
    assert answers(Desk(7, {}), session=b"t" * 16) == often, "another run has a budget of its own"


def test_a_look_at_the_budget_costs_nothing():
    desk = Desk(7, {})
    for _ in range(50):
        with desk.store.transaction() as rows:
            release(desk).check(rows)
    assert answers(desk) > 1


def test_a_data_set_has_one_budget_for_all_runs_however_the_superlink_numbers_the_node():
    often = answers(Desk(7, {"epsilon": 3.0}), delta=1e-5)
    assert often > 1
    for node, session in ((7, b"t" * 16), (8, SESSION), (9, b"u" * 16)):
        assert answers(Desk(node, {"epsilon": 3.0}), session=session, delta=1e-5) == 0
    other = {"epsilon": 3.0, "dataset": "other"}
    assert answers(Desk(9, other), session=b"v" * 16, delta=1e-5) == often, "each data set has its own"


def test_central_noise_is_charged_too():
    assert answers(Desk(7, {}), observer="public") < 40


def test_noise_that_protects_nobody_is_not_in_the_books():
    assert release(Desk(7, {}), insecure_noise_seed=1) is None


def test_passes_are_charged_once_a_pass():
    """A client of 10 examples in batches of 5 has two batches a pass."""
    work = {"local_steps": 1, "batch": 5}
    private = {"unit": "example", "batches": "passes", "noise_multiplier": 3.0, "epsilon": None, "delta": 1e-3}
    private = {key: value for key, value in private.items() if value is not None}
    desk = Desk(7, {})
    for index in (0, 1, 2, 3):
        with desk.store.transaction() as rows:
            release(desk, index, algorithm=work, **private).spend(rows)
    with desk.store.transaction() as rows:
        counted = [row[0] for row in rows.execute("SELECT counted FROM spending ORDER BY number")]
        release(desk, 1, algorithm=work, **private).spend(rows)
        (again,) = rows.execute("SELECT counted FROM spending ORDER BY number DESC LIMIT 1").fetchone()
    assert counted == [1, 0, 1, 0]
    assert again == 1, "the same batch once more is a second draw"
