"""`python -m jaxmpd`: the command `jaxmpd`."""

import sys

from jaxmpd.cli import main

sys.exit(main())
