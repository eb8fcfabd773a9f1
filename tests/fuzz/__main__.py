"""`python -m tests.fuzz`: see `fuzzer.py`."""

from __future__ import annotations

import sys

from tests.fuzz.fuzzer import main

if __name__ == "__main__":
    sys.exit(main())
