"""The commands. Importing this package limits numpy to one thread per process, because each worker is a process.

In a command, Ctrl-C ends the process silently until `run_words` handles it, which begins after all imports.
"""

import os
import signal
import sys

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

if os.path.basename(sys.argv[0]).startswith("drl-") or any(arg.startswith("drl_cli.cli.") for arg in sys.orig_argv):
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
