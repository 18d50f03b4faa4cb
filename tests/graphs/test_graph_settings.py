"""The table [graph]."""

import pytest

from config_refusal import refusal
from sketchfed import PublicSeed
from sketchfed.config import load_config
from sketchfed.errors import InputError
from sketchfed.graphs import GRAPHS, Graph, GraphSettings

OPTIONS = {"edges": {"edges": [[node, node + 1] for node in range(15)]}}
SEED = PublicSeed(3)
LOLLIPOP = """
from sketchfed.graphs import Graph

def lollipop(nodes, *, head=3):
    \"\"\"a complete graph with a tail\"\"\"
    pairs = [(a, b) for b in range(head) for a in range(b)]
    return Graph(nodes, tuple(pairs + [(node - 1, node) for node in range(head, nodes)]))

def three(nodes, seed):
    return Graph(3, ((0, 1), (1, 2)))

def split(nodes, seed):
    return Graph(nodes, ((0, 1),))

def text(nodes):
    return "graph"
"""


def settings(**table):
    return load_config({"graph": table}).graph


@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_is_connected_and_has_a_node_for_each_client(name):
    graph = settings(name=name, **OPTIONS.get(name, {})).topology(16, SEED).graph(0)
    assert graph.nodes == 16
    assert graph.connected


@pytest.mark.parametrize("name", GRAPHS)
def test_a_configuration_with_a_graph_is_read_as_it_was_written(name):
    table = {"name": name, "losses": 0.25, "outage": 3, **OPTIONS.get(name, {})}
    config = load_config({"graph": table, "algorithm": {"name": "gossip"}})
    assert load_config(config.to_tables()) == config
    done = config.completed(dim=10, sizes=[5] * 16)
    assert load_config(done.to_tables()) == done
    assert done.graph.topology(16, SEED).graph(0) == config.graph.topology(16, SEED).graph(0)


def test_a_configuration_with_a_graph_survives_a_file(tmp_path):
    weights = [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]
    config = load_config({"graph": {"name": "path", "weights": weights, "node_failures": 0.1}})
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert load_config(tmp_path / "run.toml") == config


def test_without_the_table_there_is_no_graph():
    assert load_config({}).graph is None
    assert "graph" not in load_config({}).to_tables()
    assert settings() == GraphSettings(name="ring")


def test_the_label_says_which_graph_and_what_fails():
    assert settings().label == "on ring"
    assert settings(name="small_world", degree=6, redraw=5).label == "on small world degree 6 redrawn 5"
    assert load_config({"graph": {"losses": 0.25}}).label == "fedavg on ring losses 0.25"


def test_completed_settings_have_all_options():
    assert settings(name="small_world", degree=6).completed().options == {"degree": 6, "rewiring": 0.1}


def test_the_graph_depends_on_the_seed_of_the_run():
    random = settings(name="random_regular")
    assert random.topology(16, SEED).graph(0) != random.topology(16, PublicSeed(4)).graph(0)


# --- lists of edges


def listed(edges, nodes):
    return settings(name="edges", edges=edges).topology(nodes, SEED).graph(0)


def test_edges_may_be_listed():
    assert listed([[1, 0], [2, 1]], 3) == Graph(3, ((0, 1), (1, 2)))


def test_edges_may_be_in_a_file_and_are_kept_with_the_run(tmp_path):
    (tmp_path / "edges.txt").write_text("# from, to\n0 1\n\n1, 2  # the last one\n2\t3\n")
    given = settings(name="edges", path=str(tmp_path / "edges.txt"))
    done = given.completed()
    assert given.topology(4, SEED).graph(0) == Graph(4, ((0, 1), (1, 2), (2, 3)))
    (tmp_path / "edges.txt").unlink()
    assert done.topology(4, SEED).graph(0) == Graph(4, ((0, 1), (1, 2), (2, 3)))


@pytest.mark.parametrize("line", ["0", "0 1 2", "0 -1", "a b", "0 1.0", "٣ 1"])
def test_a_line_that_is_no_edge_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "edges.txt"
    path.write_text(f"0 1\n{line}\n")
    with pytest.raises(InputError, match=r"line 2 of .*edges\.txt is .* Write two node numbers in a line, such as 0 1"):
        settings(name="edges", path=str(path)).topology(3, SEED)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "edges.txt").write_bytes(b"\xff\xfe0 1")
    for name, why in (("gone.txt", "No such file or directory"), ("edges.txt", "it is not text")):
        with pytest.raises(InputError, match=f"cannot read the edges of graph.path = .*{why}. Check the path"):
            settings(name="edges", path=str(tmp_path / name)).topology(3, SEED)


# --- what is refused


BEFORE = [
    ({"name": "rng"}, "there is no graph named 'rng'. Did you mean 'ring'?"),
    ({"outages": 2}, "there is no key in [graph] named 'outages'. Did you mean 'outage'?"),
    ({"degree": 3}, "there is no key in [graph] named 'degree'"),
    ({"name": "random_regular", "degree": "four"}, "graph.degree must be an integer, got 'four'."),
    ({"name": "edges", "edges": [[0, "1"]]}, "graph.edges[0][1] must be an integer, got [[0, '1']]."),
    ({"losses": "often"}, "graph.losses must be a number, got 'often'."),
    ({"losses": 1.0}, "graph.losses is a share of the messages, so it must be from 0 to below 1, got 1.0."),
    ({"spoiled": -0.1}, "graph.spoiled is a share of the messages"),
    ({"node_failures": 2}, "graph.node_failures is a share of the nodes"),
    ({"link_failures": float("nan")}, "graph.link_failures is a share of the links"),
    ({"stragglers": 1}, "graph.stragglers is a share of the nodes"),
    ({"outage": 0}, "graph.outage is a number of rounds, so it must be at least 1, got 0."),
    ({"redraw": -1}, "graph.redraw is a number of rounds"),
    (
        {"redraw": 5},
        "graph.redraw = 5 draws random graphs anew, and 'ring' is the same in every draw. Remove",
    ),
    ({"weights": "even"}, "there is no graph.weights named 'even'."),
    ({"weights": [[1, "a"]]}, "graph.weights must be"),
    (
        {"name": "random_regular", "redraw": 5, "weights": [[1]]},
        "graph.weights is a matrix for one graph, and redraw",
    ),
]


@pytest.mark.parametrize(("table", "why"), BEFORE, ids=[why for _, why in BEFORE])
def test_tables_that_cannot_work_are_refused_when_they_are_read(table, why):
    assert why in refusal({"graph": table})


HALVES = [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]
SIZES = [
    ({}, 1, "[graph] joins neighbours, and data.clients = 1. Use at least 2 clients"),
    ({}, 2, "a ring has at least 3 nodes, and data.clients = 2"),
    ({"name": "torus"}, 13, "data.clients = 13 is no such product. Use data.clients = 12 or 15"),
    ({"name": "torus"}, 4, "data.clients = 4 is no such product. Use data.clients = 9"),
    ({"name": "torus", "rows": 5}, 24, "a torus with graph.rows = 5 cannot have data.clients = 24 nodes"),
    ({"name": "torus", "rows": 5}, 24, "Use rows = 3 or 4 or 6 or 8."),
    ({"name": "torus", "rows": 5}, 13, "Use data.clients = 12 or 15."),
    ({"name": "random_regular", "degree": 3}, 9, "Use degree = 2, or data.clients = 10."),
    ({"name": "edges"}, 3, "either from graph.edges or from the file graph.path. Give one of them."),
    ({"name": "edges", "edges": [[0, 1]], "path": "edges.txt"}, 2, "Remove one of them."),
    ({"name": "edges", "edges": [[0, 9]]}, 8, "edges name node 9, and data.clients = 8 gives the nodes 0 to 7"),
    ({"name": "edges", "edges": [[0, 1]]}, 4, "edges name the nodes 0 to 1, and data.clients = 4. Each client is a node"),
    ({"name": "edges", "edges": []}, 2, "graph 'edges' is not connected: there is no way from node 0 to node 1"),
    ({"name": "edges", "edges": [[0, 1], [2, 3]]}, 4, "is not connected: there is no way from node 0 to node 2"),
    ({"name": "edges", "edges": [[0, 1], [1, 0]]}, 2, "the edge 0–1 is there twice"),
    ({"name": "edges", "edges": [[0, 1], [1, 1]]}, 2, "the edge 1–1 joins node 1 to itself"),
    ({"name": "edges", "edges": [[0, 1, 2]]}, 3, "an edge is a pair of node numbers from 0, got [0, 1, 2] in graph.edges"),
    ({"name": "edges", "edges": [[0, -1]]}, 2, "an edge is a pair of node numbers from 0, got [0, -1] in graph.edges"),
    (
        {"name": "edges", "edges": [[0, 1]], "directed": True},
        2,
        "graph.directed = true is not possible",
    ),
    ({"name": "path", "weights": HALVES}, 4, "a row and a column for each of the 4 nodes, got shape (3, 3)"),
    ({"weights": [[0.4, 0.6, 0.0], [0.0, 0.4, 0.6], [0.6, 0.0, 0.4]]}, 3, "These are directed edges, where symmetry is needed"),
    (
        {"name": "path", "weights": [[0.5, 0.6, 0.0], [0.6, 0.0, 0.5], [0.0, 0.5, 0.5]]},
        3,
        "row 0 sums to 1.1",
    ),
]


@pytest.mark.parametrize(("table", "clients", "why"), SIZES, ids=[why for *_, why in SIZES])
def test_graphs_that_do_not_fit_the_clients_are_refused_before_round_1(table, clients, why):
    config = load_config({"graph": table})
    with pytest.raises(InputError) as refused:
        config.completed(dim=10, sizes=[5] * clients)
    assert why in str(refused.value)


# --- graphs of others


def test_a_graph_of_an_installed_package_works(installed):
    installed("shapes_of_mine", {"lollipop": "shapes_of_mine:lollipop"}, LOLLIPOP, group="sketchfed.graphs")
    graph = settings(name="lollipop", head=4).topology(7, SEED).graph(0)
    assert (len(graph.edges), graph.diameter) == (9, 4)
    assert settings(name="shapes_of_mine:lollipop").topology(5, SEED).graph(0).degree(0) == 2
    assert "there is no key in [graph] named 'hat'" in refusal({"graph": {"name": "lollipop", "hat": 4}})
    assert "is the same in every draw" in refusal({"graph": {"name": "lollipop", "redraw": 4}})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("three", "returned a graph of 3 nodes, and data.clients = 5"),
        ("split", "is not connected: there is no way from node 0 to node 2, and it falls into 4 parts"),
        ("text", "must return a sketchfed.graphs.Graph, not a str"),
    ],
)
def test_what_a_graph_of_your_own_returns_is_checked(installed, name, why):
    installed("shapes_of_mine", {}, LOLLIPOP, group="sketchfed.graphs")
    with pytest.raises(InputError) as refused:
        settings(name=f"shapes_of_mine:{name}").topology(5, SEED)
    assert why in str(refused.value)
