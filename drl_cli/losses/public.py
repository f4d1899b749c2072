"""`drl.losses`: losses and targets for your own algorithms, as pure functions of batched tensors."""

from drl_cli.losses.critics import (
    categorical_critic,
    clipped_surrogate,
    huber,
    mean,
    mse,
    quantile_critic,
    twin_critics,
)
from drl_cli.losses.distributional import divergence, midpoints, project, two_hot_error, two_hot_loss
from drl_cli.losses.returns import gae, lambda_returns, n_step_returns, retrace, vtrace
from drl_cli.losses.symlog import bins_mean, symexp, symexp_bins, symlog
from drl_cli.losses.value import expectile, soft_target

__all__ = [
    "bins_mean",
    "categorical_critic",
    "clipped_surrogate",
    "divergence",
    "expectile",
    "gae",
    "huber",
    "lambda_returns",
    "mean",
    "midpoints",
    "mse",
    "n_step_returns",
    "project",
    "quantile_critic",
    "retrace",
    "soft_target",
    "symexp",
    "symexp_bins",
    "symlog",
    "twin_critics",
    "two_hot_error",
    "two_hot_loss",
    "vtrace",
]
