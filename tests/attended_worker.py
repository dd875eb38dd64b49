"""A worker that signs in, as on several nodes: the fake one, or the real one with ATTENDED=real."""

from __future__ import annotations

import os
import sys

from nbhelpers.runs.nodes import attend

if __name__ == "__main__":
    if os.environ.get("ATTENDED") == "real":
        from nbhelpers.jobs.worker import main, quiet_libraries

        quiet_libraries()
    else:
        from tests.fake_worker import main

    code = attend(sys.argv[1], main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
