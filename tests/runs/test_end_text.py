"""The lines at the end of a run."""

import pytest

from drl_cli.errors import DIVERGED, INTERRUPTED, LOST, USER_CODE
from drl_cli.runs.end_text import end_text


@pytest.mark.parametrize(
    ("exit_code", "resumes"), [(INTERRUPTED, True), (LOST, True), (DIVERGED, True), (USER_CODE, False)]
)
def test_resume_is_advised_unless_the_users_code_would_fail_again(tmp_path, exit_code, resumes):
    summary = {"status": "failed", "exit_code": exit_code, "checkpoint_last": "checkpoints/step_1"}
    assert (f"drl-train resume={tmp_path}" in end_text(summary, tmp_path)) == resumes
