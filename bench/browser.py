# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over a pair of pipes by the DevTools protocol.

No driver and no library in between: messages are JSON ended by a NUL, see
https://chromedevtools.github.io/devtools-protocol/.  Everything that waits has
a bound; leaving the ``with`` block ends the browser and drops its profile.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Self

COMMANDS = ('chromium', 'chromium-browser', 'google-chrome')
#: Options that keep it from sending any request that it was not given.
FLAGS = (
    '--headless=new',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--disable-dev-shm-usage',
    '--hide-scrollbars',
    '--remote-debugging-pipe',
    '--no-proxy-server',
)
SECONDS = 60.0
#: It reads from descriptor 3 and writes to 4; the given ones have other numbers, or crosswise.
_BECOME = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""

#: Names of keys -> their codes.
KEYS = {
    'Enter': 13,
    'Escape': 27,
    'End': 35,
    'Home': 36,
    'ArrowLeft': 37,
    'ArrowUp': 38,
    'ArrowRight': 39,
    'ArrowDown': 40,
}


def command() -> str | None:
    """Return the Chromium of this machine, None where there is none."""
    named = os.environ.get('GANTT_TEST_CHROMIUM')
    return named or next(filter(None, map(shutil.which, COMMANDS)), None)


class Browser:
    """A page of one browser with a profile of its own.

    :ivar problems: errors of its console and its log, oldest first
    """

    def __init__(self) -> None:
        """Start it.

        :raises RuntimeError: there is none, or it does not start
        """
        words = command()
        if words is None:
            raise RuntimeError(f'no Chromium: none of {", ".join(COMMANDS)} is installed')
        self.problems: list[str] = []
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: list[str] = []
        self._buffer = b''
        self._profile = tempfile.TemporaryDirectory(
            prefix='gantt-chromium-', ignore_cleanup_errors=True
        )
        self._log = (pathlib.Path(self._profile.name) / 'said.log').open('wb')
        self._process = self._start(words)
        target = self._call('Target.createTarget', url='about:blank')['targetId']
        attached = self._call('Target.attachToTarget', targetId=target, flatten=True)
        self._session: str | None = attached['sessionId']
        for domain in ('Page', 'Runtime', 'Log'):
            self.call(f'{domain}.enable')

    _session = None

    def _start(self, program: str) -> subprocess.Popen[bytes]:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        process = subprocess.Popen(
            [
                sys.executable,
                '-I',
                '-S',
                '-c',
                _BECOME,
                str(to_read),
                str(to_write),
                program,
                *FLAGS,
                f'--user-data-dir={self._profile.name}/profile',
                'about:blank',
            ],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, 'HOME': self._profile.name},
        )
        os.close(to_read)
        os.close(to_write)
        return process

    # -- the protocol ----------------------------------------------------------------
    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request to the page.

        :raises RuntimeError: it refuses, or does not answer in time
        """
        return self._call(method, self._session, **params)

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {'id': number, 'method': method, 'params': params}
        if session:
            message['sessionId'] = session
        os.write(self._write, json.dumps(message).encode() + b'\0')
        end = time.monotonic() + SECONDS
        while number not in self._answers:
            self._receive(end)
        answer = self._answers.pop(number)
        if 'error' in answer:
            raise RuntimeError(f'{method}: {answer["error"]["message"]}')
        return answer['result']

    def _receive(self, end: float) -> None:
        ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
        data = os.read(self._read, 1 << 20) if ready else b''
        if not data:
            log = pathlib.Path(self._log.name).read_text(errors='replace')[-2000:]
            raise RuntimeError(f'the browser does not answer: {log}')
        *messages, self._buffer = (self._buffer + data).split(b'\0')
        for raw in messages:
            message = json.loads(raw)
            if 'id' in message:
                self._answers[message['id']] = message
            else:
                self._note(message['method'], message['params'])

    def _note(self, event: str, params: dict[str, Any]) -> None:
        self._events.append(event)
        if event == 'Runtime.exceptionThrown':
            details = params['exceptionDetails']
            self.problems.append(details.get('exception', {}).get('description', details['text']))
        elif event == 'Runtime.consoleAPICalled' and params['type'] in ('error', 'assert'):
            values = [x.get('value', x.get('description', '')) for x in params['args']]
            self.problems.append(' '.join(map(str, values)))
        elif event == 'Log.entryAdded' and params['entry']['level'] == 'error':
            entry = params['entry']
            self.problems.append(f'{entry["text"]} {entry.get("url", "")}')

    # -- what a person does -------------------------------------------------------------
    def screen(self, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        """Set the size of the window, and the theme that the system has."""
        self.call(
            'Emulation.setDeviceMetricsOverride',
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        theme = {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}
        self.call('Emulation.setEmulatedMedia', features=[theme])

    def open(self, url: str) -> None:
        """Go to an address, and wait until it is loaded.

        :raises RuntimeError: it cannot be loaded
        """
        self._events.clear()
        navigation = self.call('Page.navigate', url=url)
        if navigation.get('errorText'):
            raise RuntimeError(f'{url}: {navigation["errorText"]}')
        end = time.monotonic() + SECONDS
        while 'Page.loadEventFired' not in self._events:
            self._receive(end)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; a promise is waited for.

        :raises RuntimeError: it throws
        """
        evaluated = self.call(
            'Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True
        )
        if 'exceptionDetails' in evaluated:
            details = evaluated['exceptionDetails']
            raise RuntimeError(details.get('exception', {}).get('description', details['text']))
        return evaluated['result'].get('value')

    def wait(self, expression: str, seconds: float = 30.0) -> Any:
        """Wait until an expression is true; return its value, True of an element.

        :raises RuntimeError: it is not within ``seconds``
        """
        end = time.monotonic() + seconds
        expression_of_node = f'((value) => value instanceof Node || value)({expression})'
        while not (value := self.run(expression_of_node)):
            if time.monotonic() > end:
                raise RuntimeError(f'not within {seconds:.0f} s: {expression}')
            time.sleep(0.02)
        return value

    def click(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Click on an element, at a share of its width and height."""
        box = self.run(
            f'(() => {{ const e = document.querySelector({json.dumps(selector)});'
            'e.scrollIntoView({block: "center"}); const b = e.getBoundingClientRect();'
            'return [b.left, b.top, b.width, b.height]; })()'
        )
        at = {'x': box[0] + box[2] * x, 'y': box[1] + box[3] * y}
        self.call('Input.dispatchMouseEvent', type='mouseMoved', **at)
        for kind in ('mousePressed', 'mouseReleased'):
            self.call('Input.dispatchMouseEvent', type=kind, button='left', clickCount=1, **at)

    def press(self, key: str) -> None:
        """Press and let go a key of ``KEYS``."""
        for kind in ('rawKeyDown', 'keyUp'):
            self.call(
                'Input.dispatchKeyEvent',
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=KEYS[key],
            )

    def type(self, text: str) -> None:
        """Type text into the focused element."""
        self.call('Input.insertText', text=text)

    def picture(self, whole: bool = False) -> bytes:
        """Return the window, or the whole page, as PNG."""
        params: dict[str, Any] = {'format': 'png'}
        if whole:
            size = self.call('Page.getLayoutMetrics')['cssContentSize']
            params |= {'captureBeyondViewport': True, 'clip': {**size, 'scale': 1}}
        return base64.b64decode(self.call('Page.captureScreenshot', **params)['data'])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._write)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._read)
        self._log.close()
        self._profile.cleanup()
