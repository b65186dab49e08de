"""``python -m dsexplore._internal.torch_internals``: list private names that the installed torch lacks or changed."""

import sys

from dsexplore._internal.torch_internals.canary import main

sys.exit(main())
