"""A client's state that was kept as bytes is checked when it comes back, not when it is used."""

import msgspec
import pytest
from recorded_sums import ORDER, recorded

from sketchfed.errors import SecureSumError
from sketchfed.secure import SecureClient
from sketchfed.secure.kept import sealed
from sketchfed.secure.transcript import HASH

CLIENT, STRANGER = 2, 99


def kept_before(stage: str) -> dict:
    return msgspec.msgpack.decode(recorded("wrong seed").client(stage, CLIENT).to_bytes()[HASH:], strict=False)


def read(tree: dict) -> SecureClient:
    return SecureClient.from_bytes(sealed(msgspec.msgpack.encode(tree)))


@pytest.mark.parametrize("stage", ORDER[1:])
def test_a_kept_client_comes_back_as_it_was(stage):
    client = recorded("wrong seed").client(stage, CLIENT)
    again = SecureClient.from_bytes(client.to_bytes())
    assert again.state == client.state
    assert again.stage == stage


DAMAGE = {
    "short key": ("shares", lambda state: state.update(mask_key=bytes(31)), "mask_key does not take 32 bytes"),
    "key beyond the field": ("shares", lambda state: state.update(self_seed=b"\xff" * 32), "self_seed cannot be shared"),
    "short dealing": ("shares", lambda state: state.update(dealing=bytes(32)), "dealing does not take 64 bytes"),
    "long keys": ("shares", lambda state: state.update(shown=bytes(161)), "shown does not take 160 bytes"),
    "other client": ("shares", lambda state: state.update(client=STRANGER), "client 99 is not among the 8 clients"),
    "short root": ("masked", lambda state: state["transcript"].update(root=b""), "transcript is of another sum"),
    "other round": ("masked", lambda state: state["transcript"]["terms"].update(round=9), "transcript is of another sum"),
    "stranger": (
        "masked",
        lambda state: state["peers"].update({STRANGER: [bytes(32)] * 4}),
        "clients that are not its neighbours",
    ),
    "short mask": ("masked", lambda state: state["peers"][1].__setitem__(1, b""), "neighbour has another length"),
    "no mask": ("consent", lambda state: state["pairs"].pop(1), "too few of those that are"),
    "long mask": ("recover", lambda state: state["pairs"].update({1: bytes(33)}), "neighbour has another length"),
    "short share": ("unmask", lambda state: state["held"].update({1: [bytes(32), bytes(31)]}), "neighbour has another length"),
    "long list": ("unmask", lambda state: state.update(survivors=bytes(9)), "8 clients are flagged in 1 bytes"),
    "short list": ("recover", lambda state: state.update(survivors=b"\x04"), "a list of survivors that no client signs"),
    "others' list": ("recover", lambda state: state.update(survivors=b"\xfb"), "a list of survivors that no client signs"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_is_refused_when_it_is_read(damage):
    stage, spoil, saying = DAMAGE[damage]
    tree = kept_before(stage)
    assert read(tree).stage == stage
    spoil(tree["state"])
    with pytest.raises(SecureSumError, match=rf"cannot be read: .*{saying}.* The client joins the next one\."):
        read(tree)


def test_damage_around_a_state_is_refused_too():
    tree = kept_before("masked")
    for change, saying in (
        ({"kind": "Finished"}, "this one at 'Finished'"),
        ({"directory": {1: b"short"}}, "an identity takes 32 bytes"),
        ({"more": 1}, "unknown field"),
    ):
        with pytest.raises(SecureSumError, match=saying):
            read({**tree, **change})
    for data in (b"", sealed(b""), sealed(b"\xc1"), sealed(b"\x81" * 5_000)):
        with pytest.raises(SecureSumError, match="cannot be read"):
            SecureClient.from_bytes(data)


def test_a_share_in_the_place_of_another_is_noticed():
    """Client 6 left and client 3 stayed, so this client would tell both shares of client 3, one of them as that of client 6."""
    client = recorded("wrong seed").client("unmask", CLIENT)
    state, data = client.state, client.to_bytes()
    damaged = data.replace(state.held[6].mask_share, state.held[3].mask_share)
    assert damaged != data
    with pytest.raises(SecureSumError, match="its checksum does not fit"):
        SecureClient.from_bytes(damaged)
