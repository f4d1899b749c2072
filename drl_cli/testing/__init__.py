"""Checks of your own algorithm. They are plain asserts, so you can use them in pytest or anywhere else.

    def test_my_algorithm():
        check_algorithm("my_algo", "env=Pendulum-v1")
        check_learning("my_algo", "algo.lr=3e-3", updates=600)

Write names and overrides as on drl-train's command line. docs/add-an-algorithm.md explains what is checked.
"""

from drl_cli.testing.case import Case
from drl_cli.testing.contract import check_algorithm
from drl_cli.testing.learning import check_gradients, check_learning

__all__ = ["Case", "check_algorithm", "check_gradients", "check_learning"]
