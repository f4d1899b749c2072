"""`drl.losses`: losses and targets for your own algorithms, as pure functions of batched tensors."""

from drl_cli.losses.critics import categorical_critic as categorical_critic
from drl_cli.losses.critics import clipped_surrogate as clipped_surrogate
from drl_cli.losses.critics import huber as huber
from drl_cli.losses.critics import mse as mse
from drl_cli.losses.critics import quantile_critic as quantile_critic
from drl_cli.losses.critics import twin_critics as twin_critics
from drl_cli.losses.distributional import midpoints as midpoints
from drl_cli.losses.distributional import project as project
from drl_cli.losses.returns import gae as gae
from drl_cli.losses.returns import lambda_returns as lambda_returns
from drl_cli.losses.returns import n_step_returns as n_step_returns
from drl_cli.losses.returns import retrace as retrace
from drl_cli.losses.returns import vtrace as vtrace
from drl_cli.losses.value import soft_target as soft_target

__all__ = [
    "categorical_critic",
    "clipped_surrogate",
    "gae",
    "huber",
    "lambda_returns",
    "midpoints",
    "mse",
    "n_step_returns",
    "project",
    "quantile_critic",
    "retrace",
    "soft_target",
    "twin_critics",
    "vtrace",
]
