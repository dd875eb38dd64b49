"""A worker that may use only a part of its GPU, to see whether a smaller card's preset fits.

NBHELPERS_CAP_GIB is what the allocator may reserve: the card's memory less the CUDA context.
"""

from __future__ import annotations

import os
import sys

from nbhelpers.jobs.worker import main, quiet_libraries
from nbhelpers.runs.unsupervised import attend


def cap() -> None:
    """Limit the allocator; kernels that older cards lack are switched off where it is asked for."""
    import torch

    size = float(os.environ["NBHELPERS_CAP_GIB"]) * 2**30
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, size / total))
    if os.environ.get("NBHELPERS_CAP_OLD") == "1":
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


if __name__ == "__main__":
    quiet_libraries()
    cap()
    code = attend(sys.argv[1], main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
