"""The command `ooctrain`, and `python -m ooctrain`.

A Ctrl-C is one line from the first import on, which takes the better part of a second; another one,
or one that comes when all is done, ends the process without a word. Read next: `cli/__init__.py`.
"""

import signal
import sys


def main() -> int:
    """Runs the command line with this process's arguments, and returns the exit status."""
    try:
        from ooctrain.cli import main as command_line  # here, where an interrupt is caught

        status = command_line()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stderr.write("ooctrain: interrupted\n")
        status = 1
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return status


if __name__ == "__main__":
    sys.exit(main())
