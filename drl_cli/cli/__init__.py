"""The commands. Importing this package limits numpy to one thread per process, because each worker is a process.

In a command, Ctrl-C, SIGTERM and SIGHUP end the process silently until `run_words` handles them, after all imports.
"""

import os
import signal
import sys

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

if os.path.basename(sys.argv[0]).startswith("drl-") or any(arg.startswith("drl_cli.cli.") for arg in sys.orig_argv):
    for _number, _code in ((signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 129)):  # as in drl_cli.errors
        if signal.getsignal(_number) != signal.SIG_IGN or _number == signal.SIGINT:  # nohup ignores SIGHUP
            signal.signal(_number, lambda *_, code=_code: os._exit(code))
