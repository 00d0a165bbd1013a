"""`python -m xlan` is the `xlan` command."""

from xlan.cli.main import main

main()
