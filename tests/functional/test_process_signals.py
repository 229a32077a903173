# SPDX-License-Identifier: Apache-2.0
"""What a process of ours hears while it serves."""

import signal
import subprocess
import sys
import threading

from gantt.cmd import process_signals

#: The main thread is never interrupted: all signals go to another thread, as they may by POSIX.
ELSEWHERE = """
import signal, threading
from gantt.cmd.process_signals import ProcessSignals
signals = ProcessSignals().handle_signals({signal.SIGUSR1: 'report'})
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
print('ready', flush=True)
for request in signals.requests_until_stop():
    print(request, flush=True)
print('stopped', signals.is_stopping(), flush=True)
"""


def test_a_signal_that_does_not_interrupt_the_main_thread_is_heard():
    with subprocess.Popen(
        [sys.executable, '-c', ELSEWHERE], stdout=subprocess.PIPE, text=True
    ) as process:
        # As it idles for a minute, what only idling finds would be found too late.
        late = threading.Timer(process_signals.IDLE_CALLBACK_SECONDS / 2, process.kill)
        late.start()
        assert process.stdout.readline() == 'ready\n'
        for number, line in (
            (signal.SIGHUP, 'reload'),
            (signal.SIGUSR1, 'report'),
            (signal.SIGTERM, 'stopped True'),
        ):
            process.send_signal(number)
            assert process.stdout.readline() == f'{line}\n'
        assert process.wait() == 0
        late.cancel()


def test_the_main_thread_looks_after_it_while_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(process_signals, 'IDLE_CALLBACK_SECONDS', 0.01)
    signals = process_signals.ProcessSignals()
    looks = []

    def idle():
        looks.append(len(looks))
        if len(looks) == 2:
            signals.reload()
        if len(looks) == 4:
            signals.stop()

    assert [(request, len(looks)) for request in signals.requests_until_stop(idle)] == [
        ('reload', 2)
    ]
    assert looks == [0, 1, 2, 3]
