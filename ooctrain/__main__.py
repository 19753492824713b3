"""`python -m ooctrain` is the command `ooctrain`."""

import sys

from ooctrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
