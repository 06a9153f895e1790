"""Uses what trainings use of a machine besides files: processes, locks, sockets, shared memory,
temporary folders.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing import shared_memory

import torch
from torch import nn


def double(value):
    return 2 * value


with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(double, [1, 2]) == [2, 4]
with multiprocessing.Manager() as manager:
    shared = manager.dict(a=1)
    assert shared["a"] == 1
queue = multiprocessing.get_context("fork").Queue()
sender = multiprocessing.get_context("fork").Process(
    target=queue.put, args=(torch.ones(3).numpy(),)
)
sender.start()
assert queue.get().sum() == 3
sender.join()
memory = shared_memory.SharedMemory(create=True, size=64)
memory.buf[0] = 7
memory.unlink()
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
worker.terminate()
assert worker.wait() == -signal.SIGTERM
os.kill(os.getpid(), 0)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "state")
    with open(path, "w") as file:
        file.write("x")
    os.chmod(path, 0o600)
    os.utime(path, (1, 1))
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(os.path.join(folder, "socket"))
        server.listen()
        client.connect(os.path.join(folder, "socket"))
near, far = socket.socketpair()
near.send(b"x")
assert far.recv(1) == b"x"
subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, check=False)
assert (
    subprocess.run(
        "ps; echo $$ > own.txt; cat own.txt > /dev/null", shell=True, check=False
    ).returncode
    == 0
)
with socket.create_server(("127.0.0.1", 0)) as server:
    thread = threading.Thread(
        target=lambda: socket.create_connection(server.getsockname()).send(b"x")
    )
    thread.start()
    assert server.accept()[0].recv(1) == b"x"
    thread.join()

model = nn.Linear(64, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
