"""One rank of a ring: `python linked.py ROUNDS DEADLINE [VICTIM]`. Rank VICTIM kills itself in the middle of round 3."""

import json
import os
import signal
import sys
import time

from sketchfed.rounds.launch import Launch
from sketchfed.rounds.rank_links import RankLinks


def main(rounds: int, deadline: float, victim: int = -1) -> None:
    launch = Launch.needed()
    size = launch.size
    links = RankLinks(launch, list(range(size)), deadline=deadline, wait=30)
    own, neighbours = launch.rank, [(launch.rank - 1) % size, (launch.rank + 1) % size]
    arrived, seconds = [], []
    for index in range(rounds):
        outgoing = {(own, other): f"{own} in {index}".encode() * 1_000 for other in neighbours}
        if (index, own) == (3, victim):
            links.exchange({(own, neighbours[0]): b"half a round"}, [], index, "mix")
            time.sleep(0.2)  # a neighbour has its message, and the other has not
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        found = links.exchange(outgoing, [(other, own) for other in neighbours], index, "mix")
        seconds.append(time.monotonic() - start)
        assert all(data in (f"{sender} in {index}".encode() * 1_000, b"half a round") for (sender, _), data in found.items())
        arrived.append(sorted(sender for sender, _ in found))
    print(json.dumps({"arrived": arrived, "slowest": max(seconds), "gone": sorted(links.gone), "lost": links.lost}), flush=True)
    links.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:]))
