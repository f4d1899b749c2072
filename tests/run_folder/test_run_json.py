import datetime
from dataclasses import replace

from graphs import make_config

from drl_cli.run_folder.find import all_runs
from drl_cli.run_folder.run_json import make_folder
from drl_cli.utils.clock import STAMP


def test_runs_are_ordered_by_their_start_also_after_the_clock_was_set_back(tmp_path):
    """The newest run is in another folder, and of a time to come, as after the end of summer time."""
    config = make_config("env=Pendulum-v1", f"output_dir={tmp_path}")
    later = (datetime.datetime.now() + datetime.timedelta(hours=1)).strftime(STAMP)
    first = tmp_path / "Acrobot-v1" / "dqn-async" / f"{later}-s9"
    first.mkdir(parents=True)
    made = [make_folder(replace(config, seed=seed)) for seed in (5, 4, 3)]
    for folder in (first, *made):
        (folder / "run.json").write_text("{}")
    assert all_runs(str(tmp_path)) == [first, *made]
    assert made[-1].name.startswith(later[:15])
    assert made[-1].name.endswith("-s3")
