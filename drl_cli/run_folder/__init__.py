"""What lies in a run's folder. This file has the names that other rooms need, too."""

RUN_LOCK = ".lock"
"""The file in a run's folder that a process locks while it trains there."""
MANAGE_LOCK = ".manage.lock"
"""The file in a run's folder that a running manage process locks."""
SWEEP_FILE = "sweep.json"
SPACES_FILE = "spaces.json"
"""The file with the spaces of the dataset, in the folder of a run without an environment."""
