"""A plain loop over clients with autograd, as one writes federated averaging in an afternoon."""

import random

import torch

from sketchfed_lab.benchmarks.peers.laps import Laps
from sketchfed_lab.benchmarks.peers.work import Work, data, local_epoch, model, share


def measure(work: Work, *, threads: int, fused: bool) -> Laps:
    """Do all rounds. `threads` are torch's, `fused` takes the optimizer's single kernel instead of its default."""
    torch.set_num_threads(threads)
    torch.manual_seed(7)
    data()
    server, client = model(), model()
    laps = Laps(skipped=work.warmup, rounds=work.rounds)
    laps()
    for _ in range(work.warmup + work.rounds):
        chosen = random.sample(range(work.clients), work.participants)
        received = server.state_dict()
        mean = {name: torch.zeros_like(value) for name, value in received.items()}
        for number in chosen:
            client.load_state_dict(received)
            if work.train:
                inputs, labels = share(number, work.examples)
                local_epoch(client, inputs, labels, batch=work.batch, rate=work.rate, fused=fused)
            for name, value in client.state_dict().items():
                mean[name].add_(value, alpha=1 / work.participants)
        server.load_state_dict(mean)
        laps()
    return laps
