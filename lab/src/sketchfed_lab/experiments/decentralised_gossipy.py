"""A peer of `decentralised`: gossip learning by gossipy 0.0.1 (`pip install gossipy-dfl`), on the same data and rings.

Run it as a program, where gossipy is installed: `python -m sketchfed_lab.experiments.decentralised_gossipy FOLDER`. It appends
to `peers.jsonl` of the folder, from which the report makes a table. gossipy imports torchvision, and uses none of it here.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from sketchfed.config import load_config
from sketchfed.runs import Case, Row, Workload, sweep
from sketchfed.vectors import flatten
from sketchfed_lab.experiments import decentralised, make_settings, recorded_settings
from sketchfed_lab.experiments.decentralised_report import DENSE

RATES = (0.1, 0.3)
SIZES = (1, 10)


def cases(settings: decentralised.Settings) -> list[Case]:
    """Whole models and samples of a tenth on a ring, at several local rates."""
    found = []
    for spread in settings.spreads:
        for inverse in SIZES:
            for rate in RATES:
                for seed in settings.seeds[str(settings.tuning_nodes)]:
                    place, nodes = (spread, "ring", DENSE, 1), settings.tuning_nodes
                    made = decentralised.case(settings, place, nodes, {"local_rate": rate}, seed=seed, validation=0.0)
                    key = {"arm": "gossipy", "spread": spread, "graph": "ring", "nodes": nodes, "inverse_ratio": inverse}
                    found.append(
                        Case(key=key | {"local_rate": rate, "tested": settings.tested, "seed": seed}, tables=made.tables)
                    )
    return found


def measured(case: Case) -> Row:
    """Let nodes of gossipy push to a random neighbour in each round, merge what they get, and train.

    The row holds the mean accuracy of the nodes on the first `tested` held-out examples and the numbers that were sent.
    """
    _stub("torchvision", "datasets", "transforms")
    core, data, handlers, models, kinds, simulation, sets = (
        import_module(f"gossipy.{name}") for name in ("core", "data", "model.handler", "model", "node", "simul", "data.handler")
    )
    torch.set_num_threads(1)
    key, settings = case.key, case.tables["algorithm"]
    torch.manual_seed(key["seed"])
    np.random.seed(key["seed"])  # noqa: NPY002 (gossipy draws from this generator)
    workload = Workload.from_config(load_config(case.tables))
    parts = [workload.examples(node) for node in range(key["nodes"])]
    chunks = workload.test_chunks()
    x, y = (torch.cat([each[at] for each in chunks])[: key["tested"]] for at in (0, 1))

    class Net(models.TorchModel):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = workload.module

        def init_weights(self) -> None:
            """All nodes start from the same weights, as ours do."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.net(inputs)  # type: ignore[no-any-return]

    class Steps:
        """As many local steps as ours take, on random batches."""

        model: Any
        optimizer: Any
        criterion: Any

        def _update(self, examples: Any) -> None:
            for _ in range(settings["local_steps"]):
                rows = torch.randint(len(examples[0]), (settings["batch"],))
                self.optimizer.zero_grad()
                self.criterion(self.model(examples[0][rows]), examples[1][rows]).backward()
                self.optimizer.step()
            self.n_updates: int = self.n_updates + 1

    class Sent(simulation.SimulationEventReceiver):  # type: ignore[misc, name-defined]
        """Counts the messages."""

        messages = 0

        def update_message(self, failed: bool, msg: object = None) -> None:
            self.messages += not failed

        def update_evaluation(self, *_: object) -> None:
            """Nothing to count."""

        update_end = update_timestep = update_evaluation

    whole = key["inverse_ratio"] == 1
    handler = type("Handler", (Steps, handlers.TorchModelHandler if whole else handlers.SamplingTMH), {})
    options: Mapping[str, Any] = {} if whole else {"sample_size": 1 / key["inverse_ratio"]}
    ring = np.zeros((key["nodes"], key["nodes"]))
    for node in range(key["nodes"]):
        ring[node, (node + 1) % key["nodes"]] = ring[(node + 1) % key["nodes"], node] = 1
    sizes = np.cumsum([0, *(len(each[1]) for each in parts)])
    owner = [list(range(sizes[node], sizes[node + 1])) for node in range(len(parts))]
    # gossipy evaluates after every round, slowly; ten examples are enough for it
    handed = sets.ClassificationDataHandler(
        torch.cat([each[0] for each in parts]), torch.cat([each[1] for each in parts]), x[:10], y[:10]
    )
    dispatcher = data.DataDispatcher(handed, n=key["nodes"], eval_on_user=False, auto_assign=False)
    dispatcher.set_assignments(owner, None)
    network = core.StaticP2PNetwork(key["nodes"], ring)
    made = handler(
        **options,
        net=Net(),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": settings["local_rate"]},
        criterion=nn.CrossEntropyLoss(),
        local_epochs=0,
        batch_size=settings["batch"],
        create_model_mode=core.CreateModelMode.MERGE_UPDATE,
    )
    kind = kinds.GossipNode if whole else kinds.SamplingBasedNode
    nodes = kind.generate(dispatcher, network, made, round_len=100, sync=True)
    simulator = simulation.GossipSimulator(
        nodes=nodes, data_dispatcher=dispatcher, delta=100, protocol=core.AntiEntropyProtocol.PUSH, sampling_eval=0.0
    )
    sent = Sent()
    simulator.add_receiver(sent)
    simulator.init_nodes(seed=key["seed"])
    simulator.start(n_rounds=settings["rounds"])
    right = []
    for node in nodes.values():
        with torch.no_grad():
            right.append(float((node.model_handler.model(x).argmax(1) == y).float().mean()))
    numbers = len(flatten(workload.module)) // key["inverse_ratio"] * sent.messages
    return {"accuracy": float(f"{np.mean(right):.5g}"), "messages": sent.messages, "numbers": numbers}


def _stub(name: str, *parts: str) -> None:
    """An empty package, if it is not installed."""
    if name not in sys.modules and find_spec(name) is None:
        sys.modules[name] = ModuleType(name)
        for part in parts:
            sys.modules[f"{name}.{part}"] = ModuleType(f"{name}.{part}")
            setattr(sys.modules[name], part, sys.modules[f"{name}.{part}"])


if __name__ == "__main__":
    chosen = make_settings(decentralised, recorded_settings("decentralised"))
    sweep(cases(chosen), Path(sys.argv[1]) / "peers.jsonl", compute=measured)
