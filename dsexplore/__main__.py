"""``python -m dsexplore``: what the command ``dsexplore`` does."""

import sys

from dsexplore.cli import main

if __name__ == "__main__":
    sys.exit(main())
