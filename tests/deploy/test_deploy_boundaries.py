import json
import shutil

from drl_cli.deploy.trained import open_policy, stages


def test_the_stages_of_a_run_are_its_checkpoints_without_repeats(copied):
    checkpoints = copied / "checkpoints"
    files = [path / "manifest.json" for path in checkpoints.glob("step_*")]
    steps = sorted({json.loads(file.read_text())["env_steps"] for file in files})
    assert len(steps) > 1
    shutil.copytree(files[0].parent, checkpoints / "step_000000000-again")
    (checkpoints / "step_notes").write_text("a file of the user")
    assert [stage.manifest["env_steps"] for stage in stages(open_policy(str(copied)))] == steps
