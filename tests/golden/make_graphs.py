"""Write `graphs.json`: digests of what the nodes of a graph say to each other.

To add a case, run this script; it keeps the digests that are there. Recording a digest anew is a break of compatibility:
nodes of two versions could no longer learn together.

    PYTHONPATH=tests:tests/rounds/peers python tests/golden/make_graphs.py
"""

import json
from pathlib import Path

from golden_graphs import CASES, digests

FILE = Path(__file__).parent / "graphs.json"

if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    FILE.write_text(json.dumps({name: known.get(name) or digests(name) for name in CASES}, indent=1) + "\n")
