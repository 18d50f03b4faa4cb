"""Write `replies.json`: digests of what algorithms and codecs put on the wire.

The file that is there was made with version 0.1.0 (commit 7718101). To add a case, take the line that the failing test prints;
to make all of it again, after a decision to change what is sent, run this script:

    PYTHONPATH=tests python tests/golden/make_replies.py
"""

import json
from pathlib import Path

from golden_replies import everything

FILE = Path(__file__).parent / "replies.json"

if __name__ == "__main__":
    FILE.write_text(json.dumps(everything(), indent=1) + "\n")
