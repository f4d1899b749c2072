"""drl-export: write a trained policy for use without drl-cli, and compare it with the run's policy."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from drl_cli.algos.lookup import load_algorithm
from drl_cli.cli.command import CHECKPOINT_HELP, OUTPUT_DIR_HELP, RUN_HELP, TRUST_HELP, option, run_command
from drl_cli.config.config import Config
from drl_cli.deploy.formats import Format, check, has_onnx, not_exported
from drl_cli.deploy.trained import acting, find_step_and_config, open_step
from drl_cli.errors import DONE, MISSING, UsageError, users_errors
from drl_cli.utils.machine import headless
from drl_cli.utils.ranges import Count
from drl_cli.utils.shown import print, relative_path, score_text

FORMATS = "onnx: ONNX, for any runtime; torch: torch.export; numpy: arrays, run by numpy alone; hub: for a model hub"


@dataclass(frozen=True)
class Options:
    """Options of drl-export."""

    WRITES: ClassVar = "drl-export writes RUN/export/FORMAT-CHECKPOINT, and prints the path"

    run: str = option("latest", RUN_HELP)
    format: Literal[Format, "hub"] = option("numpy", FORMATS)
    checkpoint: str = option("best", CHECKPOINT_HELP)
    episodes: Count = option(20, "episodes in which it is compared with the run's policy")
    license: str | None = option(None, "licence in the model card of format=hub, such as mit")
    trust: bool = option(False, TRUST_HELP)
    output_dir: str = option("outputs", OUTPUT_DIR_HELP)


def main() -> None:
    """Run drl-export."""
    about = "write a run's policy for use without drl-cli, normalisation and units inside"
    run_command("drl-export", Options, export, about, positional="run")


def export(options: Options) -> int:
    """Export the policy. Print its folder, and the largest difference from the actions of the run's policy."""
    if options.format == "onnx" and not has_onnx():
        raise UsageError("format=onnx needs packages that are not installed:  pip install 'drl-cli[onnx]'", MISSING)
    step, config = find_step_and_config(options.run, options.checkpoint, options.output_dir, options.trust)
    if options.format == "hub":
        return export_for_hub(options, step, config)
    if options.license is not None:
        raise UsageError(f"license={options.license} is for the model card of format=hub; leave it out")
    with users_errors(config.outside_modules):
        check(load_algorithm(config.algo.name).Policy, options.format)
    policy = open_step(step, config)
    from drl_cli.deploy.export import export as write

    with acting(policy.config, policy.run / "export"):
        folder, parity = write(policy, options.format, options.episodes)
    print(f"{policy.run.name}  {policy.checkpoint.name}  ->  {relative_path(folder)}")
    if line := not_exported(load_algorithm(config.algo.name).Policy):
        print(line)
    exported, trained = score_text(parity.return_exported), score_text(parity.return_trained)
    returns = (
        f"{parity.episodes} episodes: return {exported}, the run's {trained}"
        if policy.has_env
        else "they are random, because the run had no environment"
    )
    print(f"{parity.observations:,} observations: actions differ by at most {parity.largest_difference:.1g}; {returns}")
    return DONE


def export_for_hub(options: Options, step: Path, config: Config) -> int:
    """Write a folder for a model hub. Print the folder, what it lacks, and the command that uploads the folder."""
    if not config.has_env:
        raise UsageError(
            "format=hub has returns in its model card, and the run had no environment (env=none); say numpy"
        )
    os.environ.update(headless())
    policy = open_step(step, config)
    from drl_cli.deploy.hub import write_hub

    with acting(policy.config, policy.run / "export"):
        folder, lacks = write_hub(policy, options.episodes, options.license)
    name = re.sub(r"[^\w.-]+", "-", f"{config.algo_name}-{config.env.name}")
    print(f"{policy.run.name}  {policy.checkpoint.name}  ->  {relative_path(folder)}")
    print("\n".join([*lacks, f"to upload it:  hf upload YOUR_NAME/{name} {relative_path(folder)}"]))
    return DONE


if __name__ == "__main__":
    main()
