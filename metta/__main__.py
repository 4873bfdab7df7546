"""``python -m metta`` is the command ``metta``."""

import sys

from metta.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
