"""Cohorts of secure clients for tests, driven in process, with dropouts where a test wants them."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sketchfed.secure import Identity, SecureClient, SecureServer, SecureSum, Stage, Terms, planned_terms, run_stages
from sketchfed.secure.client import NO_PREMISE
from sketchfed.seeds import SecretSeed
from sketchfed.wire import pack, unpack

SESSION = bytes(range(16))
SECRET = SecretSeed()


class Cohort:
    """Clients with identities and values; `stages` maps a client to the last stage that it answers."""

    def __init__(self, terms: Terms, *, seed: int = 7) -> None:
        self.terms = terms
        self.identities = {client: Identity.of(SECRET.child("client", client)) for client in terms.clients}
        self.directory = {client: identity.public for client, identity in self.identities.items()}
        generator = torch.Generator().manual_seed(seed)
        shape = (len(terms.clients), terms.size)
        drawn = torch.randint(0, 2**terms.bits, shape, generator=generator)
        self.values: dict[int, Tensor] = dict(zip(terms.clients, drawn, strict=True))
        self.premise = NO_PREMISE
        """What the server sent to compute from."""
        self.premises: dict[int, bytes] = {}
        """What clients computed from, where it is something else."""
        self.clients: dict[int, SecureClient] = {}
        self.sent: dict[str, dict[int, bytes]] = {}
        self.replied: dict[str, dict[int, bytes]] = {}

    def server(self) -> SecureServer:
        return SecureServer(self.terms, self.directory, premise=self.premise)

    def answer(self, client: int, request: bytes) -> bytes:
        packet = unpack(request)
        if packet.kind == "secure.keys":
            terms = Terms.from_packet(packet)
            self.clients[client], reply = SecureClient.join(terms, client, self.identities[client], self.directory, SECRET)
            return pack(reply)
        return pack(self.clients[client].answer(packet, self.values[client], self.premises.get(client, self.premise)))

    def ask(self, stage: Stage, requests: Mapping[int, bytes], *, gone: Callable[[Stage, int], bool]) -> dict[int, bytes]:
        self.sent[stage], self.replied[stage] = dict(requests), {}
        for client, request in requests.items():
            if not gone(stage, client):
                self.replied[stage][client] = self.answer(client, request)
        return self.replied[stage]

    def run(self, gone: Callable[[Stage, int], bool] = lambda stage, client: False) -> SecureSum:
        return run_stages(self.server(), lambda stage, requests: self.ask(stage, requests, gone=gone))

    def expected(self, survivors: tuple[int, ...]) -> Tensor:
        return torch.stack([self.values[client] for client in survivors]).sum(0) % 2**self.terms.bits


def small_terms(count: int = 5, **changes: object) -> Terms:
    """Planned terms, or with `neighbours` and `threshold` any that are given: small rings hold against no colluders."""
    given = {"session": SESSION, "round": 3, "clients": range(count), "size": 4, "bits": 16} | changes
    if {"neighbours", "threshold"} <= changes.keys():
        clients = tuple(sorted(given.pop("clients")))
        least = max(given["threshold"], len(clients) - max(len(clients) // 10, 1))
        return Terms(clients=clients, **{"least": least} | given)
    return planned_terms(**given)
