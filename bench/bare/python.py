"""What Python programs do to their own process: streams, descriptors, signals, exits, limits,
introspection.
"""

PRELUDE = """
import os, signal, subprocess, sys, time
def training(steps=30):
    import torch
    torch.manual_seed(0); torch.set_num_threads(1)
    m = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad(); loss = m(torch.ones(2, 4)).pow(2).mean(); loss.backward(); optimizer.step()
        yield loss.item()
def run(steps=30):
    for loss in training(steps): print(loss.hex(), flush=True)
"""

SCRIPTS = {
    "exit_code": "run(5); sys.exit(7)",
    "exit_text": "run(5); sys.exit('out of luck')",
    "exit_hard": "run(5); os._exit(9)",
    "abort": "import faulthandler; run(5); os.abort()",
    "kill_self": "run(5); os.kill(os.getpid(), signal.SIGKILL)",
    "term_self": "run(5); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
    "interrupt_self": "run(5); os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "segfault": "run(5)\nimport ctypes; ctypes.string_at(0)",
    "uncaught": "run(5); {}['missing']",
    "import_error": "run(2); import torch.no_such_module",
    "syntax_error": "run(2); exec('a b')",
    "atexit": "import atexit; atexit.register(print, 'bye'); run(5)",
    "excepthook": "sys.excepthook = lambda kind, *a: print('hook', kind.__name__); run(5); 1 / 0",
    "thread_exception": "import threading; threading.excepthook = lambda a: print('thread', "
    "a.exc_type.__name__)\nt = threading.Thread(target=lambda: 1 / "
    "0); t.start(); t.join(); run(5)",
    "unraisable": "class A:\n    def __del__(self): 1 / 0\nsys.unraisablehook = lambda u: "
    "print('unraisable', u.exc_type.__name__)\nrun(3); A()",
    "destructor_at_exit": "class A:\n    def __del__(self): os.write(1, b'gone\\n')\nkept = A(); run(5)",
    "optimizer_until_exit": "import torch; kept = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1) for _ in "
    "range(3)]; run(20); sys.modules['kept'] = kept",
    "warning_place": "import warnings; warnings.simplefilter('always'); run(3); warnings.warn('look here'); "
    "warnings.warn('one up', stacklevel=2)",
    "logging_exception": "import logging\nlogging.basicConfig(format='%(levelname)s %(message)s')\nfor i, l in "
    "enumerate(training(5)):\n    try: [][i]\n    "
    "except IndexError: logging.exception('step %d', i)",
    "traceback_text": "import traceback\ndef deep(n):\n    if n == 0: raise ValueError('bottom')\n    deep(n - "
    "1)\nrun(3)\ntry: deep(5)\nexcept ValueError: print(traceback.format_exc())",
    "recursion": "def deep(n): return n if n == 0 else deep(n - 1)\nrun(3); print(deep(900))\ntry: "
    "deep(10**6)\nexcept RecursionError as e: print(type(e).__name__)",
    "out_by_name": "print('before', flush=True); "
    "run(5)\nopen('/dev/stdout', 'w').write('by name\\n'); run(5)",
    "err_by_name": "print('before', flush=True); open('/dev/stderr', 'w').write('by name\\n'); run(5)",
    "out_appended": "print('before', flush=True); open('/dev/stdout', 'a').write('appended\\n'); run(5)",
    "proc_fd": "print('before', flush=True); open('/proc/self/fd/1', 'w').write('proc\\n'); run(5)",
    "child_by_name": "print('before', flush=True); subprocess.run('echo child > /dev/stdout; echo err > "
    "/dev/stderr', shell=True); run(5)",
    "tee_by_name": "print('before', flush=True); subprocess.run('echo both | "
    "tee /dev/stderr', shell=True); run(5)",
    "children_mixed": "for i in range(5):\n    print(i, flush=True); subprocess.run(['sh', '-c', f'echo c{i}; "
    "echo e{i} >&2'])\nrun(3)",
    "binary": "sys.stdout.buffer.write(bytes(range(256)) * 100); sys.stdout.flush(); run(3)",
    "nul_bytes": "sys.stdout.buffer.write(bytes(100_000)); sys.stdout.flush(); run(3)",
    "long_line": "print('x' * 3_000_000); run(3)",
    "flood": "for i in range(300_000): print(i)\nrun(3)",
    "carriage_returns": "for i in range(100): print(f'\\r{i} %', end='', file=sys.stderr)\nrun(3)",
    "unicode": "print('Größe 模型 🚀'); run(3)",
    "closed_stdout": "run(3); os.close(1); os.close(2); time.sleep(0.1); os._exit(4)",
    "redirected": "run(3); f = open('file', 'w'); os.dup2(f.fileno(), 1); run(3)",
    "unbuffered_order": "for i in range(200): os.write(1, b'o%d\\n' % i); os.write(2, b'e%d\\n' % i)\nrun(2)",
    "closerange": "losses = list(training(30)); os.closerange(3, 400)\nfiles = [open(f'result{i}', 'w') for "
    "i in range(8)]\nfor i, loss in enumerate(training(60)):\n    files[i % "
    "8].write(loss.hex() + '\\n'); time.sleep(0.01)\nfor f in files: "
    "f.close()\nprint([open(f'result{i}').read().count('\\n') for i in range(8)])",
    "closerange_socket": "import socket\nlist(training(30)); os.closerange(3, 400)\na, b = socket.socketpair(); "
    "b.settimeout(0.2)\npairs = [socket.socketpair() for _ in range(4)]\nfor _ in "
    "training(60): time.sleep(0.01)\nprint([p[1].recv(1, socket.MSG_DONTWAIT) if False else "
    "'quiet' for p in pairs])\nfor p in [(a, b), *pairs]:\n    for end in p:\n        "
    "end.setblocking(False)\n        try: print(len(end.recv(100)))\n        except "
    "BlockingIOError: print('nothing')",
    "daemonise": "run(5); sys.stdout.flush()\nif os.fork(): time.sleep(1.5); "
    "os._exit(0)\nos.setsid()\nos.closerange(3, 100); f = open('daemon', 'w')\nfor loss in "
    "training(30): f.write(loss.hex() + '\\n')\nf.close(); os._exit(0)",
    "descriptor_numbers": "f = open('file', 'w'); list(training(10)); g = "
    "open('file2', 'w'); print(f.fileno(), g.fileno())",
    "exec_again": "run(3); sys.stdout.flush()\nif len(sys.argv) < 2: os.execv(sys.executable, "
    "[sys.executable, __file__, 'again'])",
    "module_argument": "print(__name__, sys.argv[1:], os.path.basename(__file__)); run(3)",
    "subprocess_python": "run(3); subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags.isolated, "
    "len(sys.argv))'])",
    "isolated_python": "run(3); subprocess.run([sys.executable, '-I', '-c', 'print(1)']); "
    "subprocess.run([sys.executable, '-S', '-c', 'print(2)'])",
    "empty_environment": "run(3); subprocess.run([sys.executable, '-c', 'import os; "
    "print(sorted(os.environ)[:3])'], env={})",
    "alarm": "seen = []\nclass Late(Exception): pass\ndef ring(*a): seen.append(1); raise "
    "Late\nsignal.signal(signal.SIGALRM, ring); raised = 0\nimport torch; m = "
    "torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), 0.0)\nwhile raised < 150:\n   "
    " try:\n        signal.setitimer(signal.ITIMER_REAL, 0.003)\n        while True: "
    "m(torch.ones(1, 2)).sum().backward(); o.step()\n    except Late: raised += "
    "1\nsignal.setitimer(signal.ITIMER_REAL, 0); print(raised, len(seen) - raised)",
    "handlers": "got = []\nfor n in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM): signal.signal(n, "
    "lambda s, f: got.append(s))\nfor i, _ in enumerate(training(60)): os.kill(os.getpid(), "
    "(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)[i % 3])\nprint(len(got))",
    "signal_state": "list(training(5)); print([(s.name, str(signal.getsignal(s))[:30]) for s in "
    "(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGUSR1, "
    "signal.SIGALRM)], signal.pthread_sigmask(0, []))",
    "asyncio": "import asyncio\nasync def main():\n    for l in training(10): print(l.hex()); await "
    "asyncio.sleep(0)\nasyncio.run(main())",
    "futures": "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as p: "
    "print([v[-1].hex() for v in p.map(lambda n: list(training(n)), [20])])",
    "settrace": "lines = [0]\ndef tracer(frame, event, arg):\n    if frame.f_code.co_name == 'training' "
    "and event == 'line': lines[0] += 1\n    return tracer\nimport torch; torch.nn.Linear(1, "
    "1)\nsys.settrace(tracer); list(training(10)); sys.settrace(None); print(lines[0])",
    "setprofile": "calls = [0]\nimport torch\ndef profiler(frame, event, arg):\n    if frame.f_code.co_name "
    "== 'training': calls[0] += 1\nsys.setprofile(profiler); list(training(10)); "
    "sys.setprofile(None); print(calls[0])",
    "collector": "import gc; gc.disable(); list(training(20)); print(gc.isenabled(), gc.get_threshold(), "
    "len(gc.callbacks) >= 0); gc.freeze(); print(gc.get_freeze_count() > 0)",
    "tracemalloc": "import tracemalloc; tracemalloc.start(); run(5); print(tracemalloc.is_tracing())",
    "switch_interval": "print(sys.getswitchinterval(), sys.getrecursionlimit(), sys.flags.dev_mode, "
    "sys.dont_write_bytecode); run(3)",
    "umask": "print(oct(os.umask(0o27))); run(3); open('made', 'w').write('1'); "
    "print(oct(os.stat('made').st_mode))",
    "working_directory": "os.mkdir('deep'); os.chdir('deep'); run(3); open('here', 'w').write('x'); "
    "print(os.path.basename(os.getcwd()))",
    "standard_input": "print(repr(sys.stdin.read()), sys.stdin.isatty()); run(3)",
    "terminals": "print(sys.stdout.isatty(), sys.stderr.isatty()); run(3)",
    "broken_pipe": "run(3); p = subprocess.Popen(['true'], stdin=subprocess.PIPE); p.wait()\ntry: "
    "p.stdin.write(b'x' * 100000); p.stdin.flush()\nexcept BrokenPipeError: print('broken "
    "pipe')\np.stdin = None",
    "zombies": "pid = os.fork()\nif not pid: os._exit(3)\nrun(3); print(os.waitpid(-1, 0)[1])\ntry: "
    "os.waitpid(-1, 0)\nexcept ChildProcessError: print('no child')",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); run(3)\ntry: "
    "open('big', 'w').write('x' * 10000)\nexcept OSError as "
    "e: print(e.errno)\nprint('y' * 20000)",
    "no_training": "print('only this')",
    "nothing": "",
}

ARGUMENTS = {"module_argument": ["a b", "--lr=1", "--", "-x", ""]}
STANDARD_INPUT = b"some input\n"
