"""Where an exception is said to come from."""

from gputop_agent.runtime import frames
from gputop_agent.watchers import exceptions


def test_the_line_of_a_loaders_worker_is_found_in_what_torch_quotes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frames, "_names", {})
    message = f"""Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "{tmp_path}/rows.py", line 26, in __getitem__
    raise ValueError("corrupt sample 300")
ValueError: corrupt sample 300
"""
    outside = [(f"{tmp_path}/train.py", 28, "<module>")]
    assert exceptions._site(outside + exceptions._quoted(message)) == "rows.py:26 __getitem__"
    assert (
        exceptions._site(outside + exceptions._quoted(message.partition("\n")[2]))
        == "train.py:28 <module>"
    )
