import os
import shutil
import subprocess
import sys
from pathlib import Path

import drl_cli
from drl_cli.settings.conf import conf_dir

SCRIPT = """
import sys
from drl_cli.cli.complete import completions
from drl_cli.cli.train import main
from drl_cli.settings.key_help import answer

print(*completions("drl-train worker.pat"), *completions("drl-train worker.patience=n"))
print(*answer(["worker.patience"]), *answer(["worker.patience", "format=markdown"]), sep="\\n")
for args in (["--help", "worker"], ["worker.patience=0"], ["worker.patienc=1"], ["patience=1"],
             ["explain=true", "env=Pendulum-v1", "worker.patience=5"]):
    sys.argv = ["drl-train", *args]
    try:
        main()
    except SystemExit as end:
        print("exit", end.code)
"""


def test_a_new_key_appears_in_help_completion_explain_the_reference_page_and_its_errors(tmp_path):
    shutil.copytree(Path(drl_cli.__file__).parent, tmp_path / "drl_cli", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(conf_dir(), tmp_path / "conf")
    for file, before, line in (
        ("drl_cli/runtime/sections.py", "    step_timeout_s: Positive\n", "    patience: Count | None\n"),
        ("conf/worker/default.yaml", "step_timeout_s: ", "patience: 3  # how often a worker waits\n"),
    ):
        text = (tmp_path / file).read_text()
        assert text.count(before) == 1
        (tmp_path / file).write_text(text.replace(before, line + before))
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=env, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["worker.patience=", "worker.patience=null"], done.stderr
    assert (
        rows.count(["worker.patience", "int", ">=", "1", "or", "null", "3", "how", "often", "a", "worker", "waits"])
        == 2
    )  # drl-list and --help
    assert "| `worker.patience` | `int >= 1 or null` | `3` | how often a worker waits |" in done.stdout
    assert ["worker.patience", "5", "command", "line", "was", "3", "(default,", "conf/worker/default.yaml)"] in rows
    assert done.stderr.splitlines() == [
        "error: worker.patience: must be >= 1, got 0",
        "error: worker.patienc: worker has no option 'patienc'. Did you mean worker.patience?",
        "error: patience: no such option at the top level. Did you mean worker.patience?",
    ]
