"""``python -m dsexplore``, the same as the command ``dsexplore``."""

import sys

from dsexplore._internal.cli import main

if __name__ == "__main__":
    sys.exit(main())
