"""Saves a run between two rounds: `checkpoint.safetensors`, and one file for each client that keeps a memory.

The name of a memory file contains its round. The file is written before the checkpoint that refers to it, and deleted after the
next checkpoint has replaced that one. So the checkpoint on disk always finds its memories. Each file carries a digest of its
content.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sketchfed.algorithms import State
from sketchfed.algorithms.replicas import from_tensors, group
from sketchfed.errors import StorageError
from sketchfed.rounds.tally import Tally
from sketchfed.runs.versions import remedy
from sketchfed.storage import replace_file, storing
from sketchfed.training import ClientMemory
from sketchfed.version import __version__

FILE = "checkpoint.safetensors"
MEMORIES = "memories"
_VERSION = 1
_UNREADABLE = (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError)
_DAMAGED = "It was damaged or replaced; start the run anew in another folder."
_FOREIGN = "Another version of sketchfed wrote it. Resume the run with that version, or start it anew in another folder."


class _FormatError(ValueError):
    """The checkpoint has a format that this version does not read."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that a run needs to continue as if it had never stopped."""

    state: State
    tally: Tally
    seconds: float
    memories: dict[int, ClientMemory]
    under_way: dict[str, Tensor]
    """What was between the server and its clients, as `Server.under_way` says it."""
    chained: bool
    """Whether the run's privacy ledger had hashes when this was saved. It then has them for good."""


class Checkpoints:
    """Saves and loads the checkpoint in a run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._saved: dict[int, int] = {}  # maps a client to the round in the name of its memory file

    def save(
        self,
        state: State,
        tally: Tally,
        *,
        seconds: float,
        memories: dict[int, ClientMemory],
        changed: set[int],
        under_way: Mapping[str, Tensor] = MappingProxyType({}),
        chained: bool = False,
    ) -> None:
        """Replace the checkpoint. `changed` holds the clients whose memory is not on disk yet."""
        saved = dict(self._saved)
        for client in sorted(changed):
            saved[client] = state.replica.round
            with storing(self._folder / MEMORIES):
                (self._folder / MEMORIES).mkdir(exist_ok=True)
            replace_file(self._memory_file(client, saved[client]), _packed(memories[client].to_tensors(), {}))
        counts = {name: value for name, value in vars(tally).items() if isinstance(value, int)}
        about = {**counts, "seconds": seconds, "version": _VERSION, "round": state.replica.round}
        if chained:
            about["chained"] = True
        tensors = _tensors(state)
        tensors["known"] = torch.tensor(sorted(tally.known.items()), dtype=torch.int64).reshape(-1, 2)
        tensors["saved"] = torch.tensor(sorted(saved.items()), dtype=torch.int64).reshape(-1, 2)
        tensors["update_sizes"] = torch.tensor([len(update) for update in tally.updates], dtype=torch.int64)
        tensors["updates"] = torch.from_numpy(np.frombuffer(b"".join(tally.updates), np.uint8).copy())
        tensors |= {f"way.{name}": tensor for name, tensor in under_way.items()}
        replace_file(self._folder / FILE, _packed(tensors, about))
        before, self._saved = self._saved, saved
        for client in changed & before.keys():
            if before[client] != saved[client]:
                with storing(self._folder / MEMORIES):
                    self._memory_file(client, before[client]).unlink(missing_ok=True)

    def load(self, start: State) -> Checkpoint | None:
        """Return the last checkpoint, or None if there is none. The files are validated, not trusted.

        `start` is the state before round 0.
        """
        path = self._folder / FILE
        if not path.exists():
            return None
        try:
            found = self._load(path, start)
        except _UNREADABLE as error:
            advice = remedy(self._folder, otherwise=_FOREIGN if isinstance(error, _FormatError) else _DAMAGED)
            raise StorageError(f"{path} is not a checkpoint of this run: {error}. {advice}") from error
        self._sweep()
        return found

    def _load(self, path: Path, start: State) -> Checkpoint:
        tensors, about = _unpacked(path)
        version = about.pop("version")
        if version != _VERSION:
            raise _FormatError(f"it has format {version!r}, but sketchfed {__version__} reads format {_VERSION}")
        self._check_like(start, tensors)
        replica = from_tensors(tensors, round=_count(about.pop("round")))
        own = group(tensors, "own")
        sizes = tensors["update_sizes"].tolist()
        parts = torch.split(tensors["updates"], sizes)
        self._saved = _pairs(tensors["saved"])
        seconds, chained = float(about.pop("seconds")), about.pop("chained", False) is True
        tally = Tally(
            **{key: _count(value) for key, value in about.items()},
            known=_pairs(tensors["known"]),
            updates=[part.numpy().tobytes() for part in parts] if sizes else [],
        )
        memories = {client: self._memory(client, made, len(replica.weights)) for client, made in self._saved.items()}
        state = State(replica=replica, own=own)
        way = group(tensors, "way")
        return Checkpoint(state=state, tally=tally, seconds=seconds, memories=memories, under_way=way, chained=chained)

    def _check_like(self, start: State, tensors: Mapping[str, Tensor]) -> None:
        """Refuse the checkpoint of another model or algorithm. Its tensors must have the shapes of this run's state."""
        begun = _tensors(start)
        later = {name: tensor for name, tensor in begun.items() if not tensor.numel()}  # set during training, with any shape
        parts = ("weights", "velocity", "prediction", "moments.", "own.")
        found = _described({name: later.get(name, tensor) for name, tensor in tensors.items()}, parts)
        wanted = _described(begun, parts)
        if found != wanted:
            raise ValueError(f"it holds {found}, but a run of this model and algorithm holds {wanted}")

    def _memory(self, client: int, made: int, dim: int) -> ClientMemory:
        memory = ClientMemory.from_tensors(_unpacked(self._memory_file(client, made))[0])
        if memory.owed is not None and memory.owed.shape != (dim,):
            raise ValueError(f"the memory of client {client} has shape {tuple(memory.owed.shape)}, not ({dim},)")
        return memory

    def _sweep(self) -> None:
        """Delete memories that no checkpoint refers to. They belong to rounds that were lost in a crash."""
        meant = {self._memory_file(client, made) for client, made in self._saved.items()}
        with storing(self._folder / MEMORIES):
            for file in (self._folder / MEMORIES).glob("*"):
                if file not in meant:
                    file.unlink()

    def _memory_file(self, client: int, made: int) -> Path:
        return self._folder / MEMORIES / f"{client}-{made}.safetensors"


def _tensors(state: State) -> dict[str, Tensor]:
    own = {f"own.{name}": tensor.contiguous() for name, tensor in state.own.items()}
    return {**state.replica.to_tensors(), **own}


def _described(tensors: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> str:
    chosen = sorted((name, tensor) for name, tensor in tensors.items() if name.startswith(prefixes))
    return ", ".join(f"{name} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for name, tensor in chosen)


def _packed(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    return save(tensors, metadata={"sketchfed": json.dumps(about), "digest": _digest(tensors, about)})


def _unpacked(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    about = json.loads(metadata["sketchfed"])
    if _digest(tensors, about) != metadata["digest"]:
        raise ValueError(f"the content of {path.name} is not what was written to it")
    return tensors, about


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """A digest that changes with every bit of the content. Disks lose bits, and safetensors does not check for that."""
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():  # an empty tensor may have strides that no view supports
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _pairs(tensor: Tensor) -> dict[int, int]:
    return {int(client): int(value) for client, value in tensor.reshape(-1, 2).tolist()}


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"it holds the count {value!r}, which is not an integer of at least 0")
    return value
