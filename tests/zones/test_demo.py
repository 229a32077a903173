# SPDX-License-Identifier: Apache-2.0
"""``make demo-zones``: it plays to its end, and leaves nothing behind however it ends."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

AUDIT = 'over-commit 0, lost 0, leaked 0, doubled 0, providers 0'
NAMES = {'top', 'east', 'east-gpu', 'cloud'}


@pytest.fixture
def demo(tmp_path):
    """It, running; its folder is made in that of the test."""
    process = subprocess.Popen(
        [sys.executable, '-m', 'devel.demo.zones'],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, 'TMPDIR': str(tmp_path)},
    )
    yield process
    process.terminate()
    process.communicate(timeout=60)


def zones(folder):
    """Process ids of the zones whose files are below a folder, by name."""
    pids = {}
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
        try:
            words = path.read_bytes().split(b'\0')
        except OSError:
            continue  # it has ended
        for word in words:
            text = word.decode(errors='replace')
            if text.startswith(str(folder)) and text.endswith('/gantt.conf'):
                pids[pathlib.Path(text).parent.name] = int(path.parent.name)
    return pids


def until_begun(demo, folder):
    """The four processes, which are not ready yet."""
    end = time.monotonic() + 60
    while set(running := zones(folder)) != NAMES:
        assert demo.poll() is None and time.monotonic() < end, running
        time.sleep(0.1)
    time.sleep(0.5)  # who has just been started is in its hands by then
    return running


@pytest.mark.timeout(420)
def test_it_plays_to_its_end(demo, tmp_path):
    text, _ = demo.communicate(timeout=400)
    assert demo.returncode == 0, text
    assert AUDIT in text.splitlines(), text
    for line in (
        'zone east-gpu is added',
        'host east-gpu-000',
        'in zone cloud',
        'gantt.hosts_unknown',
        'the first request, repeated: the same answer',
    ):
        assert line in text, line
    assert 'ANOTHER ANSWER' not in text
    # What it says by itself; commands print what they print.
    assert max(len(line) for line in text.splitlines() if not line.startswith('  ')) <= 80
    assert list(tmp_path.iterdir()) == []
    assert zones(tmp_path) == {}


@pytest.mark.timeout(120)
@pytest.mark.parametrize('how', ['Ctrl-C', 'a zone fails'])
def test_nothing_is_left_when_it_ends_early(demo, tmp_path, how):
    running = until_begun(demo, tmp_path)
    if how == 'Ctrl-C':
        demo.send_signal(signal.SIGINT)
    else:
        os.kill(running['top'], signal.SIGKILL)
    text, _ = demo.communicate(timeout=90)
    assert demo.returncode == (130 if how == 'Ctrl-C' else 1), text
    assert 'Traceback' not in text
    assert list(tmp_path.iterdir()) == []
    assert zones(tmp_path) == {}
