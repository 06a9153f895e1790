"""Numbers of the system calls in a script's filter, on the two machines it is written for."""

from __future__ import annotations

import os
from typing import Dict

_TABLE = """
acct 163 89; add_key 248 217; adjtimex 159 171; bpf 321 280; capset 126 91; chmod 90 -
chown 92 -; chroot 161 51; clock_adjtime 305 266; clock_settime 227 112; clone 56 220
clone3 435 435; connect 42 203; delete_module 176 106; fanotify_init 300 262; fchmod 91 52
fchmodat 268 53; fchmodat2 452 452; fchown 93 55; fchownat 260 54; fcntl 72 25
file_setattr 469 469; finit_module 313 273; fremovexattr 199 16; fsconfig 431 431
fsetxattr 190 7; fsmount 432 432; fsopen 430 430; fspick 433 433; futimesat 261 -
init_module 175 105; io_uring_enter 426 426; io_uring_register 427 427
io_uring_setup 425 425; ioctl 16 29; ioperm 173 -; iopl 172 -; ioprio_set 251 30
kcmp 312 272; kexec_file_load 320 294; kexec_load 246 104; keyctl 250 219; kill 62 129
lchown 94 -; lremovexattr 198 15; lsetxattr 189 6; migrate_pages 256 238; modify_ldt 154 -
mount 165 40; mount_setattr 442 442; move_mount 429 429; move_pages 279 239
mq_getsetattr 245 185; mq_notify 244 184; mq_open 240 180; mq_timedreceive 243 183
mq_timedsend 242 182; mq_unlink 241 181; msgctl 71 187; msgget 68 186; msgrcv 70 188
msgsnd 69 189; name_to_handle_at 303 264; open_by_handle_at 304 265; open_tree 428 428
open_tree_attr 467 467; perf_event_open 298 241; pidfd_getfd 438 438; pidfd_open 434 434
pidfd_send_signal 424 424; pivot_root 155 41; prlimit64 302 261; process_madvise 440 440
process_vm_readv 310 270; process_vm_writev 311 271; ptrace 101 117; quotactl 179 60
quotactl_fd 443 443; reboot 169 142; removexattr 197 14; removexattrat 466 466
request_key 249 218; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240
sched_setaffinity 203 122; sched_setattr 314 274; sched_setparam 142 118
sched_setscheduler 144 119; seccomp 317 277; semctl 66 191; semget 64 190; semop 65 193
semtimedop 220 192; setdomainname 171 162; sethostname 170 161; setns 308 268
setpgid 109 154; setpriority 141 140; setsid 112 157; settimeofday 164 170; setxattr 188 5
setxattrat 463 463; shmat 30 196; shmctl 31 195; shmdt 67 197; shmget 29 194; socket 41 198
socketpair 53 199; swapoff 168 225; swapon 167 224; syslog 103 116; tgkill 234 131
tkill 200 130; truncate 76 45; umount2 166 39; unshare 272 97; userfaultfd 323 282
utime 132 -; utimensat 280 88; utimes 235 -; vhangup 153 58
"""
"""``name x86_64 aarch64``; a dash where there is none."""

_MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}
"""The column of the table, and what the kernel calls the machine in a filter (``AUDIT_ARCH``)."""


def machine() -> str:
    """This machine's name where its numbers are known, else empty; a 32-bit Python has others."""
    name = os.uname().machine
    return name if name in _MACHINES and _is_64_bit() else ""


def numbers(name: str) -> Dict[str, int]:
    """The system calls that a machine has."""
    column = _MACHINES[name][0]
    rows = [row.split() for row in _TABLE.replace("\n", ";").split(";") if row.strip()]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def architecture(name: str) -> int:
    """What a filter compares the machine of a call with."""
    return _MACHINES[name][1]


def _is_64_bit() -> bool:
    import struct

    return struct.calcsize("P") == 8
