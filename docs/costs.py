"""Tables of what rounds cost, made from what benchmarks recorded, and a plan that is worked out from them."""

import json
from collections.abc import Callable
from typing import Any

from marked import RESULTS, markdown_table

from sketchfed.report.units import shown_bytes, shown_seconds
from sketchfed.secure.planning import planned_neighbourhood

ARMS = {"dense": "whole updates", "sketched": "sketches of a hundredth", "secure": "the same, noised, in secure sums"}
POPULATION, DIM = 1_000_000, 994_570
ROUND = 300
"""Seconds that a round may take."""
Row = dict[str, Any]


def recorded(name: str) -> list[Row]:
    """All rows of a benchmark; where one was recorded again, the last."""
    rows = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    last = max((row["date"] for row in rows), default="")
    return [row for row in rows if row["date"] == last]


def rounds(side: str, *, dim: int | None = None, left: bool = False) -> list[Row]:
    found = [row for row in recorded("scale") if row["topic"] == side and row["what"] == "round"]
    dims = sorted({row["dim"] for row in found})
    return [row for row in found if row["dim"] == (dim or dims[0]) and bool(row["left"]) == left]


def cohorts() -> str:
    """A line for each arm and cohort of the smaller model."""
    servers = {(row["arm"], row["clients"]): row for row in rounds("server")}
    lines = [
        [
            ARMS[row["arm"]],
            f"{row['clients']:,}",
            f"{1e3 * row['seconds']:.1f} ms",
            f"{shown_bytes(row['up_bytes'])} up, {shown_bytes(row['down_bytes'])} down",
            f"{1e3 * (server := servers[row['arm'], row['clients']])['seconds']:,.0f} ms",
            shown_bytes(server["peak_bytes"]),
            str(row.get("neighbours", "–")),
        ]
        for row in rounds("client")
    ]
    heads = ["", "clients", "a client's CPU", "a client's bytes", "the server's CPU", "its memory", "neighbours"]
    return markdown_table(heads, lines)


def leaving() -> str:
    """What a tenth that leaves costs the server in secure sums."""
    stay = {row["clients"]: row for row in rounds("server") if row["arm"] == "secure"}
    lines = [
        [f"{row['clients']:,}", str(row["left"]), *(f"{1e3 * each['seconds']:,.0f} ms" for each in (stay[row["clients"]], row))]
        for row in rounds("server", left=True)
    ]
    return markdown_table(["clients", "leave", "if all stay", "if they leave"], lines)


def neighbours() -> str:
    counts = [10**power for power in range(2, 7)]
    found = [[f"{count:,}", *(str(planned_neighbourhood(count, **given).neighbours) for given in _ASSUMED)] for count in counts]
    return markdown_table(
        ["clients of a sum", "a tenth leaves, a tenth colludes", "three tenths leave, nobody colludes"], found
    )


_ASSUMED: tuple[dict[str, float], ...] = ({"colluders": 0.1, "dropouts": 0.1}, {"colluders": 0.0, "dropouts": 0.3})


def plan() -> str:
    """A million clients of a model of a million parameters, by what a client of the largest measured cohorts costs."""
    rows = [_planned(arm, cohort) for arm in ARMS for cohort in (1_000, 10_000)]
    heads = ["", "cohort", "up", "down", "first models", "server's CPU", "its memory", "line for a round in 5 min"]
    return markdown_table(heads, rows)


def _planned(arm: str, cohort: int) -> list[str]:
    client = max((row for row in rounds("client", dim=DIM) if row["arm"] == arm), key=lambda row: row["clients"])
    server = max((row for row in rounds("server", dim=DIM) if row["arm"] == arm), key=lambda row: row["clients"])
    up, down, first = client["up_bytes"], client["down_bytes"], 0 if arm == "dense" else 4 * DIM
    seconds, memory = (server[key] / server["clients"] for key in ("seconds", "peak_bytes"))
    if arm == "secure":
        more = planned_neighbourhood(cohort, colluders=0.1, dropouts=0.1).neighbours - client["neighbours"]
        up, down = up + _slope("up_bytes") * more, down + _slope("down_bytes") * more
    line = cohort * (max(up, down + first)) * 8 / ROUND
    return [
        ARMS[arm],
        f"{cohort:,}",
        shown_bytes(cohort * up),
        shown_bytes(cohort * down),
        shown_bytes(cohort * first) if first else "in them",
        shown_seconds(cohort * seconds),
        shown_bytes(cohort * memory),
        f"{line / 1e6:,.0f} Mbit/s",
    ]


def _slope(way: str) -> float:
    """Bytes a neighbour, from the smallest cohort to the largest."""
    found = sorted((row for row in rounds("client", dim=DIM) if row["arm"] == "secure"), key=lambda row: row["clients"])
    return float((found[-1][way] - found[0][way]) / (found[-1]["neighbours"] - found[0]["neighbours"]))


def directory_bytes() -> str:
    return shown_bytes(32 * POPULATION)


def federation_bytes() -> str:
    """What one client's round takes, as counted by us, by Flower and on the socket; the first round apart."""
    lines = [
        [
            row["what"],
            f"{row['dim']:,}",
            *(
                " / ".join(shown_bytes(row[f"{counted}_{way}"]) for counted in ("payload", "content", "net"))
                for way in ("up", "down")
            ),
            f"{_both(row, 'net') / _both(row, 'payload'):.2f}",
        ]
        for row in _federation("round")
    ]
    return markdown_table(["", "parameters", "up: ours / Flower's / socket", "down", "socket / ours"], lines)


def savings() -> str:
    """How many times fewer bytes than whole updates take, by who counts."""
    rows = [row for row in recorded("federation") if row["topic"] == "saving" and row["way"] == "both"]
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        cells.setdefault((row["what"], row["dim"]), {})[row["counted"]] = row["ratio"]
    lines = [
        [what, f"{dim:,}", *(f"{found[name]:.1f}" for name in ("payload", "net", "socket"))]
        for (what, dim), found in cells.items()
    ]
    return markdown_table(["", "parameters", "of ours", "on the socket", "with polling"], lines)


def federation_times() -> str:
    """Wall time of a round, and CPU time of each party for one client."""
    lines = [
        [
            f"{row['what']}, {'a fork' if row['isolation'] == 'warm' else 'a new process'} a message",
            f"{row['dim']:,}",
            shown_seconds(row["seconds"]),
            *(f"{1e3 * row[f'cpu_{role}']:,.0f} ms" for role in ("link", "node", "app", "server")),
        ]
        for row in _federation("round", isolation=None)
    ]
    return markdown_table(["", "parameters", "a round", "SuperLink", "SuperNode", "client", "server"], lines)


def federation_memory() -> str:
    rows = [row for row in recorded("federation") if row["topic"] == "memory" and row["isolation"] == "warm"]
    return markdown_table(
        ["", "resident", "at most"],
        [[row["what"], *(shown_bytes(row[f"{kind}_bytes"]) for kind in ("rss", "peak"))] for row in rows],
    )


def link_seconds() -> float:
    """CPU time of the SuperLink for a message and its reply, where they are small."""
    small = [row["cpu_link"] for row in recorded("federation") if row["topic"] == "message" and row["what"] == _SECURE]
    return float(sum(small) / len(small))


def link_cohort() -> int:
    """Clients of a round that a SuperLink serves in five minutes through the five stages of a secure sum, in tens."""
    return int(ROUND / (5 * link_seconds()) // 10) * 10


def edges() -> int:
    """The number of SuperLinks that ten thousand clients a round need."""
    return -(-10_000 // link_cohort())


def root_line() -> str:
    """What the root receives and sends: a sketch of a hundredth for each edge, both ways, in the time of a round."""
    return f"{2 * edges() * 0.04 * DIM * 8 / ROUND / 1e6:.1f} Mbit/s"


def link_plan() -> str:
    """How long the SuperLink works on a round with this many clients, by stage."""
    lines = [
        [f"{cohort:,}", *(shown_seconds(cohort * stages * link_seconds()) for stages in (1, 5))]
        for cohort in (100, 1_000, 10_000)
    ]
    return markdown_table(["cohort", "one stage", "a secure sum"], lines)


def message_overhead() -> dict[str, str]:
    """Requests and bytes of a message and its reply beyond their payload, where they are small."""
    rows = [row for row in _federation("message") if row["what"] == _SECURE]
    found = {way: sum(row[f"net_{way}"] - row[f"payload_{way}"] for row in rows) / len(rows) for way in ("up", "down")}
    requests = sum(row["turns"] - row["polls"] for row in rows) / len(rows)
    return {"requests": f"{requests:.0f}"} | {way: shown_bytes(count) for way, count in found.items()}


def idle_milliseconds() -> str:
    """CPU time of the SuperLink for a second of a node that has nothing to do."""
    [row] = [row for row in recorded("federation") if row["topic"] == "idle"]
    return f"{1e3 * row['cpu_link_a_second']:.1f}"


def idle_nodes() -> str:
    return f"{1e3 / float(idle_milliseconds()):,.0f}"


_SECURE = "secure"


def _federation(topic: str, isolation: str | None = "warm") -> list[Row]:
    return [row for row in recorded("federation") if row["topic"] == topic and isolation in (None, row["isolation"])]


def _both(row: Row, counted: str) -> float:
    return float(row[f"{counted}_up"] + row[f"{counted}_down"])


MADE: dict[str, Callable[[], str]] = {
    "cost_cohorts": cohorts,
    "cost_neighbours": neighbours,
    "cost_leaving": leaving,
    "cost_plan": plan,
    "federation_bytes": federation_bytes,
    "federation_savings": savings,
    "federation_times": federation_times,
    "federation_memory": federation_memory,
    "message_requests": lambda: message_overhead()["requests"],
    "message_up": lambda: message_overhead()["up"],
    "message_down": lambda: message_overhead()["down"],
    "link_plan": link_plan,
    "link_ms": lambda: f"{1e3 * link_seconds():.0f}",
    "link_cohort": lambda: f"{link_cohort():,}",
    "edges": lambda: f"{edges():,}",
    "root_line": root_line,
    "idle_nodes": idle_nodes,
    "idle_ms": idle_milliseconds,
    "directory": directory_bytes,
}
"""The tables and numbers of costs, by the names they have on the pages."""
