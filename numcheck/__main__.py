"""`python -m numcheck` is the `numcheck` command."""

from __future__ import annotations

import sys

from numcheck.cli import main

sys.exit(main())
