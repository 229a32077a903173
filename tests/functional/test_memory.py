# SPDX-License-Identifier: Apache-2.0
"""Memory of a process after much has waited in it, with glibc."""

import subprocess
import sys

#: Three threads fill 300 MB with what is freed again, but for every fiftieth piece.
BACKLOG = """
import threading
from gantt.cmd import wiring
from gantt.rpc.amqp.envelope import release_free_memory

def resident_mb():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * 4096 >> 20

def wait():
    pieces = [bytes(10_000) for _ in range(10_000)]
    for piece in pieces[::50]:
        left.append(piece)

left = []
wiring.keep_memory_small()
before = resident_mb()
threads = [threading.Thread(target=wait) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
release_free_memory()
print(resident_mb() - before, sum(map(len, left)) >> 20)
"""


def test_what_waited_gives_its_memory_back():
    done = subprocess.run([sys.executable, '-c', BACKLOG], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, remaining = map(int, done.stdout.split())
    assert remaining == 5
    assert grown < 60
