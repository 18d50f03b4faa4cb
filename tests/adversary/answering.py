"""A process that answers one stage of a sum from a node's store, and may be killed at a point: STORE REQUEST POINT START.

Two computations never give the same bytes, as two trainings with fresh noise do not. What it sends it prints.
"""

import os
import secrets
import signal
import sys
import time
from pathlib import Path

from sketchfed.errors import SketchfedError
from sketchfed.nodes.store import Key, NodeStore

WHO, SESSION, SUM = b"w" * 32, b"s" * 16, b"d" * 32
KEY = Key(who=WHO, session=SESSION, scope=SUM, stage="secure.masked")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, request: str, point: str, start: str) -> None:
    time.sleep(max(0.0, float(start) - time.time()))
    with NodeStore(Path(path)) as store:
        try:
            claim = store.claim(KEY, request.encode())
            if isinstance(claim, bytes):
                print(claim.hex())
                return
            if point == "claimed":
                die()
            reply = secrets.token_bytes(16)
            time.sleep(0.05)
            if point == "computed":
                die()
            if point == "committing":
                store._connection.set_trace_callback(lambda statement: die() if statement == "COMMIT" else None)
            store.settle(claim, reply, sum=(SUM, b"after"))
            if point == "committed":
                die()
            print(reply.hex())
        except SketchfedError as error:
            print(f"refused: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
