"""``python -m dsexplore.torch_internals``: list which names of the door the installed torch lacks or has changed."""

import sys

from dsexplore.torch_internals.canary import main

sys.exit(main())
