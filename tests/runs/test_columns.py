import math

from drl_cli.runs.columns import columns_of


def test_damaged_lines_of_an_evaluation_file_are_left_out(tmp_path):
    whole = b"env_steps,mean,score\r\n10,1.5,\r\n"
    (tmp_path / "eval.csv").write_bytes(whole + b"20,x,3\r\n\xff\xfe\x00\r\n30,2.5\r\n40,3.5,7\r\n50,4.")
    found = columns_of([tmp_path])
    assert (found["env_steps"], found["mean"]) == ([10, 40], [1.5, 3.5])
    assert math.isnan(found["score"][0])
    assert found["score"][1] == 7
