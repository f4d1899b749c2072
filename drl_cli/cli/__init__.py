"""The commands. Importing this sets one numpy thread per process: speed comes from processes, not from threads.

Where a trainer is told to use several, they do not wait busily: the cores are the workers' too.
"""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
