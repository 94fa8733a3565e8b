"""`python -m jaxnpc`: the command `jaxnpc`."""

from jaxnpc.cli import main

raise SystemExit(main())
