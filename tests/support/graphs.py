"""Configs and graphs for tests."""

import hashlib

COUNTER = "env=drl_cli.envs.probes:Counter-v0"
TINY = (
    "network.hidden=[16,16]",
    "orchestrator.min_inserts=64",
    "worker.envs=4",
    "worker.block_rows=32",
    "trainer.batch_size=16",
    "replay.capacity=4000",
    "manage.eval_episodes=2",
    "manage.confirm_episodes=3",
    "manage.eval_period=1000",
    "total_env_steps=512",
    "logger.tensorboard=false",
)


def make_config(*overrides):
    """The checked config of a drl-train command line."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from drl_cli.cli.conf import conf_dir
    from drl_cli.cli.hydra_plugins import register
    from drl_cli.cli.preflight import fill
    from drl_cli.cli.settings import build

    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        node = compose("train", overrides=list(overrides))
    return fill(build(OmegaConf.to_container(node, resolve=True)))


def weights(graph):
    """sha256 of the final model file."""
    return hashlib.sha256((graph.folder / "checkpoints/last/model.safetensors").read_bytes()).hexdigest()
