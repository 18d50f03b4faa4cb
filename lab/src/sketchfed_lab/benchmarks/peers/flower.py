"""Flower's own simulation: a ServerApp and a ClientApp on its Ray backend, two clients at a time with a core each.

It needs `pip install "flwr[simulation]>=1.41,<1.42"`. Strategy and settings are Flower's own; clients keep their data between
rounds, train with one thread and the faster of torch's SGD kernels, and without training return the very arrays they got.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from sketchfed_lab.benchmarks.peers.laps import Laps
from sketchfed_lab.benchmarks.peers.work import Work, local_epoch, model, share


def train(message: Message, context: Context) -> Message:
    """What a client does with the model. Ray's workers import this module once and find the data loaded from then on."""
    arrays = message.content.array_records["arrays"]
    work = Work(**json.loads(str(message.content.config_records["config"]["work"])))
    if work.train:
        torch.set_num_threads(1)
        trained = model()
        trained.load_state_dict(arrays.to_torch_state_dict())
        inputs, labels = share(int(context.node_config["partition-id"]), work.examples)
        local_epoch(trained, inputs, labels, batch=work.batch, rate=work.rate, fused=True)
        arrays = ArrayRecord(trained.state_dict())
    metrics = MetricRecord({"num-examples": work.examples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def measure(work: Work, *, cores: int) -> Laps:
    """Do all rounds, from one aggregated model to the next; what precedes the first is Ray's start."""
    laps = Laps(skipped=work.warmup, rounds=work.rounds)

    def note(replies: Sequence[RecordDict], _: str) -> MetricRecord:
        """Flower calls this at the end of a round with the replies that carry no error."""
        if len(replies) != work.participants:
            raise RuntimeError(f"only {len(replies)} of {work.participants} clients returned a model")
        laps()
        return MetricRecord()

    def serve(grid: Grid, _: Context) -> None:
        strategy = FedAvg(
            fraction_train=work.participants / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.participants,
            min_available_nodes=work.clients,
            train_metrics_aggr_fn=note,
        )
        asked = ConfigRecord({"work": json.dumps(asdict(work))})
        arrays = ArrayRecord(model().state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1 + work.warmup + work.rounds, train_config=asked)

    client, server = ClientApp(), ServerApp()
    client.train()(train)
    server.main()(serve)
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=work.clients,
        backend_config={"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    if len(laps.seconds) != work.rounds:
        raise RuntimeError(f"only {len(laps.seconds)} of {work.rounds} rounds came to an end")
    return laps
