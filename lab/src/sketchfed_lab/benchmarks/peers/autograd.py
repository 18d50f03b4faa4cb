"""A plain loop over clients with autograd, as one writes federated averaging in an afternoon."""

import random
import time

import torch

from sketchfed_lab.benchmarks.peers.work import Work, data, local_epoch, model, share


def measure(work: Work, *, threads: int, fused: bool) -> list[float]:
    """Seconds of each round. `threads` are torch's, `fused` takes the optimizer's single kernel instead of its default."""
    torch.set_num_threads(threads)
    torch.manual_seed(7)
    data()
    server, client = model(), model()
    seconds = []
    for _ in range(work.warmup + work.rounds):
        start = time.perf_counter()
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
        seconds.append(time.perf_counter() - start)
    return seconds[work.warmup :]
