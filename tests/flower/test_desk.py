import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_grid import tables

from sketchfed.config import load_config
from sketchfed.errors import InputError, SecureSumError, StorageError
from sketchfed.flower.desk import Desk, read_directory, write_identity

pytestmark = pytest.mark.usefixtures("in_a_run")
SESSION = b"s" * 16
NOISE = {"noise_multiplier": 4.0, "epsilon": 3.0, "delta": 1e-4}


def protection(**others: object):
    config = load_config(tables("fedavg", **others)).completed(dim=43, sizes=[10, 11, 12])
    return config.protection(dim=43, sizes=[10, 11, 12])


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


def test_a_node_without_a_directory_takes_the_servers_word():
    Desk(7, {}).check_directory({0: b"a" * 32})


def test_a_directory_of_the_node_must_have_the_same_keys(tmp_path):
    pinned = tmp_path / "directory"
    pinned.write_text(f"# who is who\n\n0 {(b'a' * 32).hex()}\n1 {(b'b' * 32).hex()}\n")
    assert read_directory(pinned) == {0: b"a" * 32, 1: b"b" * 32}
    desk = Desk(7, {"directory": str(pinned)})
    desk.check_directory({0: b"a" * 32, 1: b"b" * 32})
    for forged in ({0: b"a" * 32, 1: b"x" * 32}, {0: b"b" * 32, 1: b"a" * 32}, {0: b"a" * 32, 2: b"c" * 32}):
        with pytest.raises(SecureSumError, match="forged"):
            desk.check_directory(forged)


@pytest.mark.parametrize("content", [None, "0", "zero aa", "0 zz", "0 aa bb"])
def test_a_directory_that_cannot_be_read_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "directory").write_text(content)
    with pytest.raises(StorageError, match="each line"):
        Desk(7, {"directory": str(tmp_path / "directory")}).check_directory({})


def test_a_node_that_demands_nothing_takes_part_in_anything():
    Desk(7, {}).check_terms(protection())
    Desk(7, {}).check_terms(protection(privacy={**NOISE, "insecure_noise_seed": 1}))


@pytest.mark.parametrize("most", [3, 3.0, "3", 10])
def test_a_node_takes_part_up_to_its_epsilon(most):
    Desk(7, {"epsilon": most}).check_terms(protection(privacy=NOISE))


def test_a_node_refuses_a_run_that_spends_more_than_it_wants_or_says_nothing_of_it():
    desk = Desk(7, {"epsilon": 2.9})
    for offered in (protection(), protection(privacy={"noise_multiplier": 4.0, "delta": 1e-4}), protection(privacy=NOISE)):
        with pytest.raises(InputError, match=r"up to ε = 2\.9"):
            desk.check_terms(offered)


def test_a_node_that_wants_privacy_refuses_noise_that_can_be_drawn_again():
    with pytest.raises(InputError, match="rebuild"):
        Desk(7, {"epsilon": 5}).check_terms(protection(privacy={**NOISE, "insecure_noise_seed": 1}))


def test_a_node_can_demand_secure_sums():
    desk = Desk(7, {"secure": True})
    desk.check_terms(protection(secure={"clip": 1.0}))
    for offered in (protection(), protection(privacy=NOISE)):
        with pytest.raises(InputError, match="secure sums only"):
            desk.check_terms(offered)


def test_the_settings_of_a_run_that_hides_something_are_held_on_to():
    Desk(7, {}).pin(SESSION, b"noise", hides=True)
    Desk(7, {}).pin(SESSION, b"noise", hides=True)
    Desk(7, {}).pin(b"t" * 16, b"other noise", hides=True)
    for changed, hides in ((b"less noise", True), (b"none", False)):
        with pytest.raises(InputError, match="changed the run's settings"):
            Desk(7, {}).pin(SESSION, changed, hides=hides)


def test_the_settings_of_a_run_that_hides_nothing_are_not_held_on_to(tmp_path):
    for settings in (b"some", b"others"):
        Desk(7, {}).pin(SESSION, settings, hides=False)
    assert not list(tmp_path.glob("flwr/**/run-*"))


def answers(desk: Desk, limit: int = 100, **others: object) -> int:
    """How often a node answers before it refuses."""
    for number in range(limit):
        try:
            desk.charge(protection(privacy={**NOISE, **others}), SESSION, number, 0, release=True)
        except InputError:
            return number
    return limit


def test_a_nodes_own_ledger_refuses_what_the_budget_does_not_last_for():
    often = answers(Desk(7, {}))
    assert 1 < often < 100
    assert answers(Desk(7, {})) == 0, "it is on the disk"
    assert answers(Desk(8, {})) == often, "for each node"


def test_a_look_at_the_budget_costs_nothing():
    for _ in range(50):
        Desk(7, {}).charge(protection(privacy=NOISE), SESSION, 0, 0, release=False)
    assert answers(Desk(7, {})) > 1


def test_another_run_has_a_budget_of_its_own():
    often = answers(Desk(7, {}))
    desk = Desk(7, {})
    with pytest.raises(InputError, match=rf"round 6 .* answered {often} times already, by its own books"):
        desk.charge(protection(privacy=NOISE), SESSION, 5, 0, release=False)
    desk.charge(protection(privacy=NOISE), b"t" * 16, 5, 0, release=True)


def test_what_was_spent_under_one_claim_is_not_carried_over_to_another():
    answers(Desk(7, {}))
    with pytest.raises(StorageError, match="cannot be carried over"):
        Desk(7, {}).charge(protection(privacy={**NOISE, "delta": 1e-3}), SESSION, 0, 0, release=True)


@pytest.mark.parametrize("others", [{"insecure_noise_seed": 1}, {"observer": "public"}], ids=str)
def test_noise_that_is_not_the_nodes_is_not_in_its_ledger(tmp_path, others):
    assert answers(Desk(7, {}), **others) == 100
    assert not list(tmp_path.glob("flwr/**/privacy*"))
