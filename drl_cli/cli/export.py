"""drl-export: the trained policy as a file for elsewhere, checked against the run's."""

import importlib.util
from dataclasses import dataclass, field
from typing import Literal

from drl_cli.cli.command import run_command
from drl_cli.deploy.trained import open_trained
from drl_cli.envs.config import EnvFault
from drl_cli.errors import BUG, DONE, MISSING, RESOURCES, USER_CODE, UsageError, users_errors
from drl_cli.runs.end_text import relative_path
from drl_cli.utils.ranges import Count

WHAT = {
    "onnx": "ONNX, for any runtime",
    "torch": "torch.export",
    "numpy": "arrays, run by numpy alone",
}


@dataclass(frozen=True)
class Options:
    """Options of drl-export."""

    run: str = field(default="latest", metadata={"help": "a path, latest, a glob or the start of a run id"})
    format: Literal["onnx", "torch", "numpy"] = field(
        default="numpy", metadata={"help": "; ".join(f"{name}: {what}" for name, what in WHAT.items())}
    )
    checkpoint: str = field(default="best", metadata={"help": "best, last, a number of env steps or a folder's name"})
    episodes: Count = field(default=20, metadata={"help": "episodes in which it is compared with the run's policy"})
    output_dir: str = field(default="outputs", metadata={"help": "where the runs are"})


def main() -> None:
    """Run drl-export."""
    about = "write a run's policy for use without drl-cli, normalisation and units inside"
    run_command("drl-export", Options, answer, about, positional="run")


def answer(options: Options) -> int:
    """Export the policy, and print where it is and how exactly it matches the run's policy."""
    print("\n".join(export(options)))
    return DONE


def export(options: Options) -> list[str]:
    """Write the policy and compare; returns what there is to say. Raises UsageError."""
    if options.format == "onnx" and any(
        importlib.util.find_spec(name) is None for name in ("onnxscript", "onnxruntime")
    ):
        raise UsageError("format=onnx needs packages that are not installed:  pip install 'drl-cli[onnx]'", MISSING)
    trained = open_trained(options.run, options.checkpoint, options.output_dir)
    policy = trained.policy()
    from drl_cli.deploy.export import CantExport, NotTheSame
    from drl_cli.deploy.export import export as write

    with users_errors(trained.config.outside_modules):
        try:
            folder, parity = write(policy, options.format, options.episodes)
        except CantExport as error:
            raise UsageError(f"format={options.format}: {error}") from error
        except NotTheSame as error:
            raise UsageError(f"format={options.format}: the exported policy is not the run's: {error}", BUG) from error
        except OSError as error:
            raise UsageError(f"{trained.run / 'export'}: {error}", RESOURCES) from error
        except EnvFault as error:
            raise UsageError(f"{trained.config.env.id}: {error}", USER_CODE) from error
    return [
        f"{trained.run.name}  {trained.checkpoint.name}  ->  {relative_path(folder)}",
        f"{parity.observations:,} observations: actions differ by at most {parity.largest_difference:.1g}; "
        f"{parity.episodes} episodes: return {parity.return_exported:.1f}, the run's {parity.return_trained:.1f}",
    ]


if __name__ == "__main__":
    main()
