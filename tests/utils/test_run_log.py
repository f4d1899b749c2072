import logging
import re

from drl_cli.utils.run_log import run_log, tell


def test_the_file_has_all_messages_with_times_also_those_before_it_was_opened(tmp_path, capsys):
    log, path = logging.getLogger("drl_cli.somewhere"), tmp_path / "train.log"
    before = logging.getLogger("drl_cli").handlers[:]
    with run_log() as open_log:
        tell("warning: the first")
        log.warning("the second")
        open_log(path)
        log.info("the third")
        tell("error: the fourth")
    log.warning("too late")
    lines, times = path.read_text().splitlines(), r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "
    assert [re.sub(f"^{times}", "", line) for line in lines] == [
        "INFO warning: the first", "WARNING the second", "INFO the third", "INFO error: the fourth"
    ]  # fmt: skip
    assert all(re.match(times, line) for line in lines)
    shown = capsys.readouterr().err.splitlines()
    assert shown[:3] == ["warning: the first", "warning: the second", "error: the fourth"]
    assert logging.getLogger("drl_cli").handlers == before


def test_without_a_file_only_warnings_are_shown(capsys):
    with run_log():
        logging.getLogger("drl_cli.somewhere").info("hidden")
        tell("shown")
    assert capsys.readouterr().err == "shown\n"
