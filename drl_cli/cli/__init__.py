"""The commands. Importing this sets one numpy thread per process: speed comes from processes, not from threads."""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
