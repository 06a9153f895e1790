"""Ends of outputs as commands print them that fail, by launcher."""

CHAINED = """\
step 3
Traceback (most recent call last):
  File "/home/me/run/train.py", line 20, in main
    read(path)
  File "/opt/lib/python3.11/site-packages/pandas/io.py", line 7, in read
    raise
ValueError: no such shard: 7

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/run/train.py", line 31, in <module>
    main()
  File "/home/me/run/train.py", line 22, in main
    raise RuntimeError("gave up")
RuntimeError: gave up
"""

RANKS_OF_TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 89, in <module>
[rank0]:   File "/home/me/train.py", line 70, in <module>
[rank0]:     setup(device)
[rank1]:     dist.barrier()
[rank0]:   File "/home/me/setup.py", line 12, in setup
[rank0]:     torch.cuda.set_device(device)
[rank0]:   File "/opt/lib/python3.11/site-packages/torch/cuda/__init__.py", line 689, in set_device
[rank0]:     torch._C._cuda_setDevice(device)
[rank0]:     ^^^^^^^^^^^^^^^^^^^^^^^^
[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:6
[rank0]: AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'
"""

TORCHRUN = """\
E1124 02:42:43.951000 22870 torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
  File "/opt/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/lib/python3.11/site-packages/torch/distributed/run.py", line 1032, in main
    run(args)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
"""

OLDER_TORCHRUN = CHAINED + TORCHRUN

TEED = "".join(
    f"[default{line[5]}]:{line}\n" if line[:5] == "[rank" else f"{line}\n"
    for line in (RANKS_OF_TORCHRUN + TORCHRUN).splitlines()
)

ACCELERATE = (
    CHAINED
    + """\
Traceback (most recent call last):
  File "/opt/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/opt/lib/python3.11/site-packages/accelerate/commands/launch.py", line 763, in \
simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""
)

SPAWNED = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 60, in <module>
    mp.spawn(worker, nprocs=2)
  File "/opt/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 340, in spawn
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 90, in _wrap
    fn(i, *args)
  File "/home/me/train.py", line 41, in worker
    raise ValueError("no such shard: 7")
ValueError: no such shard: 7
"""

LABELLED = "".join(
    f"{rank}: {line}\n" for rank in (0, 1) for line in SPAWNED.partition("error:\n")[2].splitlines()
)
"""As srun --label prints it."""

BOXED = """\
\x1b[31m╭─\x1b[0m\x1b[31m────── \x1b[0mTraceback \x1b[2m(most recent call last)\x1b[0m ──────╮
│ /home/me/train.py:14 in main                        │
│                                                     │
│   12 │   shards = find()                            │
│ ❱ 14 │   read(shards[7])                            │
│                                                     │
│ /opt/lib/python3.11/site-packages/pandas/io.py:7 in │
│ read                                                │
╰─────────────────────────────────────────────────────╯
ValueError: no such shard: 7
"""

GROUPED = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 9, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 5, in read
    |     raise ValueError("no such shard: 7")
    | ValueError: no such shard: 7
    +------------------------------------
"""

OF_ITS_OWN_KIND = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    raise Diverged(3.0)
__main__.Diverged: 3.0
"""

UNCOMPILED = """\
  File "/home/me/train.py", line 2
    def main(:
             ^
SyntaxError: invalid syntax
"""

IMPORTED = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 2, in <module>
    import model
  File "/home/me/model.py", line 7
    def main(:
             ^
SyntaxError: invalid syntax
"""

OF_A_WORKER = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 7, in <module>
    for batch in loader:
  File "/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 733, in __next__
    data = self._next_data()
RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/lib/python3.11/site-packages/torch/utils/data/_utils/collate.py", line 272, in stack
    return torch.stack(batch, 0, out=out)
RuntimeError: stack expects each tensor to be equal size, but got [3] at entry 0

"""

PORT_TAKEN = """\
Traceback (most recent call last):
  File "/opt/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/lib/python3.11/site-packages/torch/distributed/run.py", line 1032, in main
    run(args)
torch.distributed.DistNetworkError: The server socket has failed to listen on any local network \
address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
"""

ONLY_MISSED = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 44, in worker
    dist.all_reduce(loss)
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer \
[127.0.0.1]:38804. This is typically caused by a remote worker crashing.
"""

RANKS_WITHOUT_MARKS = (
    """\
Traceback (most recent call last):
  File "/home/me/train.py", line 41, in worker
    dist.all_gather(parts, loss)
ValueError: no such shard: 7
"""
    + ONLY_MISSED
)
