"""``python -m benchmarks.speed``: see ``--help``."""

import sys

from benchmarks.speed.command import main

sys.exit(main())
