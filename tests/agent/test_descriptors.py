"""Scripts that close numbers which they did not open: what they open next is theirs alone."""

import json
import os

import pytest
from agent_support import Outcome, run_plain, run_script

from gputop_agent.runtime import descriptors

pytestmark = pytest.mark.e2e

SCRIPT = """
import json, os, socket, sys, time, eager, torch
net = torch.nn.Linear(4, 4); opt = torch.optim.SGD(net.parameters(), 1e-6)
def train(n=40, pause=0.003):
    for _ in range(n):
        net(torch.ones(2, 4)).sum().backward(); opt.step(); opt.zero_grad(); time.sleep(pause)
def strangers():
    paths = ["/proc/self/fd/" + n for n in os.listdir("/proc/self/fd")]
    links = {path: os.readlink(path) for path in paths if os.path.lexists(path)}
    sockets = [path for path, link in links.items() if link.startswith("socket:")]
    numbers = {int(os.path.basename(path)) for path in sockets}
    return sorted(numbers - own)
def close_all(): os.closerange(3, 5000)
def close_each():
    for n in range(3, 2000):
        try: os.close(n)
        except OSError: pass
def occupy(number):
    for n in strangers(): os.dup2(number, n)
folder, told, own = sys.argv[1], {}, {0, 1, 2}
train()
def free():
    time.sleep(0.01); number = os.open("/dev/null", 0); os.close(number); return number
told["next"] = min(free() for _ in range(9))  # our thread may just be reading a file
close_all()
files = [os.open("%s/%d" % (folder, i), os.O_RDWR | os.O_CREAT) for i in range(5)]
train()
for i, n in enumerate(files): os.write(n, b"result %d" % i)
train()
for n in files: os.fsync(n); os.close(n)
told["files"] = [open("%s/%d" % (folder, i)).read() for i in range(5)]
numbers = strangers()
close_each()
a, b = socket.socketpair()
for n in numbers: os.dup2(a.fileno(), n)
train()
a.sendall(b"mine"); b.sendall(b"answer"); train()
told["socket"] = [b.recv(1 << 20).decode(), a.recv(1 << 20).decode()]
for n in numbers: os.fstat(n); os.close(n)
a.close(); b.close(); train(8, 0.2)
numbers = strangers(); r, w = os.pipe()
for n in numbers: os.dup2(w, n)
train(); os.write(w, b"mine"); told["pipe"] = os.read(r, 1 << 16).decode()
for n in numbers: os.fstat(n); os.close(n)
os.close(r); os.close(w)
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen(4)
own.add(listener.fileno()); numbers = strangers()
for n in numbers: os.dup2(listener.fileno(), n)
train(); caller = socket.create_connection(listener.getsockname()); called, _ = listener.accept()
caller.sendall(b"hi"); told["listener"] = called.recv(9).decode()
for n in numbers: os.fstat(n); os.close(n)
for one in (caller, called, listener): one.close()
own = {0, 1, 2}
train(8, 0.2)
last = os.open(folder + "/last", os.O_RDWR | os.O_CREAT)
occupy(last)
child = os.fork()
if not child:
    train(3); os.write(last, b"child "); os._exit(0)
told["child"] = os.waitpid(child, 0)[1]
print(json.dumps(told), flush=True)
import atexit
atexit.register(lambda: os.write(last, b"end"))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The script without us and with us: what it printed, the last file, and what was recorded."""
    script = tmp_path_factory.mktemp("script") / "closes.py"
    script.write_text(SCRIPT)
    folders = [tmp_path_factory.mktemp(name) for name in ("without", "with")]
    plain = run_plain([str(script), str(folders[0])])
    outcome = run_script([str(script), str(folders[1])])
    assert (plain.returncode, plain.stderr) == (0, "")
    return plain, outcome, [(folder / "last").read_bytes() for folder in folders]


def test_what_reuses_the_number_of_our_socket_is_the_users_alone(runs):
    plain, outcome, lasts = runs
    assert (outcome.exit_code, outcome.stderr, outcome.agent_errors) == (0, "", "")
    assert json.loads(outcome.stdout) == json.loads(plain.stdout)
    assert lasts == [b"child end", b"child end"]


def test_the_guest_goes_on_by_another_number(runs):
    outcome: Outcome = runs[1]
    hellos = {(guest.of_type("hello") or [{"pid": None}])[0]["pid"] for guest in outcome.guests}
    assert len(outcome.guests) >= 4 and None not in hellos
    first = outcome.guests[0].of_type("hello")[0]["pid"]
    parent = [guest for guest in outcome.guests if guest.of_type("hello")[0]["pid"] == first]
    assert sum(guest.n_steps for guest in parent) == 7 * 40 + 2 * 8
    assert outcome.guests[-1].of_type("goodbye")


def test_a_raised_number_is_not_inherited_and_closes_only_itself(tmp_path):
    low = os.open(tmp_path, os.O_RDONLY)
    was = descriptors.identity(low)
    high = descriptors.raised(low)
    try:
        assert high > low + 64 and not os.get_inheritable(high)
        assert descriptors.identity(high) == was and descriptors.identity(low) is None
        other = os.open("/dev/null", os.O_RDONLY)
        os.dup2(other, high)
        descriptors.close(high, was)
        assert descriptors.identity(high) == descriptors.identity(other)
        os.close(other)
    finally:
        os.close(high)


@pytest.mark.parametrize("limit", [64, 256])
def test_a_low_limit_of_descriptors_is_kept(monkeypatch, limit):
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (limit, limit))
    assert descriptors._lowest() == limit * 3 // 4
