"""Refuse files above 500 kB; print each and exit 1 if there is one."""

from __future__ import annotations

import sys
from pathlib import Path

MAX_BYTES = 500_000


def main(paths: list[str]) -> int:
    """Print the files that are too large; 1 if there are any."""
    large = [path for path in paths if Path(path).stat().st_size > MAX_BYTES]
    for path in large:
        print(f"{path}: {Path(path).stat().st_size} bytes, more than {MAX_BYTES}")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
