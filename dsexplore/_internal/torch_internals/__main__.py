"""``python -m dsexplore._internal.torch_internals``: list what the installed torch lacks or has changed of the door."""

import sys

from dsexplore._internal.torch_internals.canary import main

sys.exit(main())
