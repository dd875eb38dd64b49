"""The fake worker, as another launcher starts it: without a supervisor of ours."""

from __future__ import annotations

import os
import sys

from nbhelpers.runs.unsupervised import attend
from tests.fake_worker import main

if __name__ == "__main__":
    code = attend(sys.argv[1], main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
