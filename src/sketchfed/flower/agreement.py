"""What all parties of a run know from its start: the settings, the clients, and the task of the model."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

import torch
from torch import Tensor

from sketchfed.config import Config, load_config
from sketchfed.errors import WireError
from sketchfed.nodes.drawing import NONCE
from sketchfed.wire import Packet, Scalar, expect_kind, number_named, pack, tensor_named, unpack

DIGEST = KEY = 32
_MOST_CLIENTS = 10**6


class Draft(NamedTuple):
    """What a server proposes, before any name in it is looked up."""

    tables: dict[str, object]
    clients: int
    shape: tuple[int, ...]
    outputs: int
    layout: str


def _any(draft: Draft) -> None:
    """Refuse nothing."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The configuration with every default filled in, and the clients: their numbers of examples, and their identities.

    `shape` and `outputs` describe the examples, so that a client builds the model without the server's data. If clients train a
    model of their own app, `layout` names its arrays instead.
    """

    config: Config
    sizes: tuple[int, ...]
    identities: tuple[bytes, ...] = ()
    """The clients' public identities, for secure sums. Empty without secure sums."""
    shape: tuple[int, ...] = ()
    outputs: int = 0
    task: str = "classification"
    layout: str = ""
    """The names and shapes of an app's arrays, as JSON."""
    nonces: tuple[bytes, ...] = ()
    """What the server and the clients revealed in their joint draw. Empty in runs that hide nothing."""

    @cached_property
    def packed(self) -> bytes:
        arrays = {"config": _bytes_tensor(self.settings), "layout": _bytes_tensor(self.layout.encode())}
        sizes = self.sizes if _counts(self.config) else (min(self.sizes),)
        arrays["sizes"] = torch.tensor(sizes, dtype=torch.int64)
        arrays["shape"] = torch.tensor(self.shape, dtype=torch.int64)
        arrays["identities"] = _bytes_tensor(b"".join(self.identities))
        arrays["nonces"] = _bytes_tensor(b"".join(self.nonces))
        scalars: dict[str, Scalar] = {"clients": len(self.sizes), "outputs": self.outputs, "task": self.task}
        return pack(Packet(kind="agreement", arrays=arrays, scalars=scalars))

    @cached_property
    def settings(self) -> bytes:
        """The configuration without the server's address, which is not part of the agreement."""
        tables = self.config.to_tables()
        tables.pop("engine")
        return json.dumps(tables, sort_keys=True).encode()

    @property
    def hides(self) -> bool:
        """Whether the run hides anything from the server."""
        return self.config.privacy is not None or self.config.secure is not None

    def counts_on(self, examples: int, client: int) -> bool:
        """Whether a client with this many examples does what was agreed on.

        With fewer, an example would be in batches more often than the noise allows for. With more, passes would be cut anew,
        and an example could be in two batches of a pass.
        """
        agreed = self.sizes[client]
        return examples == agreed if _cuts_passes(self.config) else examples >= agreed

    @cached_property
    def digest(self) -> bytes:
        return sha256(self.packed).digest()

    @classmethod
    def unpacked(cls, data: bytes, check: Callable[[Draft], None] = _any) -> "Agreement":
        """Read an agreement from bytes. Raises `WireError` or `InputError` if they contain none.

        `check` refuses a draft. It is called before the configuration is read, because reading it looks up every name.
        """
        packet = expect_kind(unpack(data), "agreement")
        raw = {name: _raw(packet, name, torch.uint8).numpy().tobytes() for name in ("config", "layout", "identities", "nonces")}
        named, shape = (tuple(_raw(packet, name, torch.int64).tolist()) for name in ("sizes", "shape"))
        if not named or min(named) < 1 or min(shape, default=1) < 1:
            raise WireError(f"clients have examples, and examples a shape; got sizes {named[:5]} and shape {shape}.")
        clients = int(number_named(packet, "clients", least=1, most=_MOST_CLIENTS))
        if len(named) not in (1, clients):
            raise WireError(
                f"an agreement says how many examples the least of clients has, or all {clients:,}; got {len(named):,}."
            )
        if len(raw["identities"]) not in (0, KEY * clients):
            raise WireError(f"{clients:,} clients have identities of {KEY} bytes, {len(raw['identities']):,} bytes arrived.")
        if len(raw["nonces"]) not in (0, NONCE * (clients + 1)):
            raise WireError(
                f"a draw of {clients:,} clients and a server has {clients + 1:,} parts of {NONCE} bytes, "
                f"{len(raw['nonces']):,} bytes arrived."
            )
        outputs, task = packet.scalars.get("outputs"), packet.scalars.get("task")
        if type(outputs) is not int or outputs < 0 or task not in ("classification", "regression"):
            raise WireError(f"an agreement says outputs and task, this one {outputs!r} and {task!r}.")
        tables, layout = _tables(raw["config"]), raw["layout"].decode(errors="replace")
        check(Draft(tables=tables, clients=clients, shape=shape, outputs=outputs, layout=layout))
        config = load_config(tables)
        counts = _counts(config)
        if len(named) < clients and counts:
            raise WireError(
                f"passes or weights follow from the numbers of examples of all {clients:,} clients, and {len(named)} arrived."
            )
        return cls(
            config=config,
            sizes=named if counts else (min(named),) * clients,  # what the digest does not cover is not read
            identities=tuple(raw["identities"][at : at + KEY] for at in range(0, len(raw["identities"]), KEY)),
            shape=shape,
            outputs=outputs,
            task=task,
            layout=layout,
            nonces=tuple(raw["nonces"][at : at + NONCE] for at in range(0, len(raw["nonces"]), NONCE)),
        )

    @property
    def directory(self) -> Mapping[int, bytes]:
        return dict(enumerate(self.identities))


def _counts(config: Config) -> bool:
    """Whether clients must know how many examples each client has. Otherwise the smallest number is enough for all."""
    return _cuts_passes(config) or config.algorithm.weighting == "examples"


def _cuts_passes(config: Config) -> bool:
    return config.privacy is not None and config.privacy.batches == "passes"


def _tables(text: bytes) -> dict[str, object]:
    try:
        tables = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the settings in an agreement are JSON, these are not: {error}.") from None
    if not isinstance(tables, dict):
        raise WireError(f"the settings in an agreement are tables, got {type(tables).__name__}.")
    return tables


def _raw(packet: Packet, name: str, dtype: torch.dtype) -> Tensor:
    array = packet.arrays.get(name)
    if not isinstance(array, Tensor) or array.ndim != 1:
        raise WireError(f"an agreement carries a list '{name}'.")
    return tensor_named(packet, name, shape=tuple(array.shape), dtype=dtype)


def _bytes_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
