"""D-PSGD in a few lines of torch, without anything of sketchfed but the data, the graph and the first weights."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.graphs import Graph
from sketchfed.runs import Case, Row, Workload
from sketchfed.vectors import flatten


def gossiped(
    case: Case,
    workload: Workload,
    test: tuple[Tensor, Tensor],
    some: tuple[Tensor, Tensor],
    point: Callable[[Mapping[str, Any]], list[Any]],
) -> Row:
    """Train each node's model with torch's SGD, and multiply the matrix of all models with the weights of the graph.

    Paper: Lian et al. 2017, Alg. 1, with local steps in place of one, and mixing after them. A row like those of other arms;
    bytes are four for each number.
    """
    start = time.perf_counter()
    settings, nodes = case.tables["algorithm"], len(workload.parts)
    graph = graph_of(case.tables, nodes)
    weights = _metropolis(graph.edges, nodes)
    models = flatten(workload.module).repeat(nodes, 1)
    data = [tuple(workload.examples(node)) for node in range(nodes)]
    draws = torch.Generator().manual_seed(case.key["seed"])
    curve = []
    for index in range(1, settings["rounds"] + 1):
        for node, (x, y) in enumerate(data):
            nn.utils.vector_to_parameters(models[node].clone(), workload.module.parameters())
            optimiser = torch.optim.SGD(workload.module.parameters(), lr=settings["local_rate"])
            for _ in range(settings["local_steps"]):
                rows = torch.randint(len(x), (settings["batch"],), generator=draws)
                optimiser.zero_grad()
                nn.functional.cross_entropy(workload.module(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            models[node] = flatten(workload.module)
        models += settings.get("mixing", 1.0) * (weights @ models - models)
        if index % case.tables["engine"]["evaluate_every"] == 0:
            sent = 4 * models.shape[1] * index
            line = {
                **_scores(workload.module, models, test, some),
                "round": index,
                "uplink_bytes": 2 * len(graph.edges) * sent,
                "node_bytes": max(map(graph.degree, range(nodes))) * sent,
                "edge_bytes": 2 * sent,
                "steps": index,
            }
            curve.append(point(line))
    return {"curve": curve, "diverged": False, "seconds": round(time.perf_counter() - start, 2)}


def graph_of(tables: Mapping[str, Any], nodes: int) -> Graph:
    """The graph of a run, which is drawn from the run's seed if it is random."""
    config = load_config(tables)
    if config.graph is None:
        raise InputError("a run with a server has no graph. Add [graph] to its tables.")
    return config.graph.topology(nodes, config.shared_seed).graph(0)


def _metropolis(edges: tuple[tuple[int, int], ...], nodes: int) -> Tensor:
    joined = torch.zeros(nodes, nodes)
    for a, b in edges:
        joined[a, b] = joined[b, a] = 1.0
    degrees = joined.sum(1)
    weights = joined / (1 + torch.maximum(degrees[:, None], degrees[None, :]))
    return weights + torch.diag(1 - weights.sum(1))


def _scores(module: nn.Module, models: Tensor, test: tuple[Tensor, Tensor], some: tuple[Tensor, Tensor]) -> dict[str, float]:
    def right(weights: Tensor, x: Tensor, y: Tensor) -> tuple[float, float]:
        nn.utils.vector_to_parameters(weights.clone(), module.parameters())
        with torch.no_grad():
            outputs = module(x)
        return float(nn.functional.cross_entropy(outputs, y)), float((outputs.argmax(1) == y).float().mean())

    mean = models.mean(0)
    loss, accuracy = right(mean, *test)
    own = sorted(right(each, *some)[1] for each in models)
    worst = own[: -(-len(own) // 10)]
    return {
        "loss": loss,
        "accuracy": accuracy,
        "clients_accuracy": sum(own) / len(own),
        "clients_accuracy_worst": sum(worst) / len(worst),
        "consensus": float((models - mean).square().sum(1).mean().sqrt()),
    }
