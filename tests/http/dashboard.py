# SPDX-License-Identifier: Apache-2.0
"""A walk over the dashboard, as a person who opens all that can be opened."""

from collections.abc import Iterator

from bench.browser import Browser

#: Everything was asked for and answered, once.
LOADED = "document.getElementById('freshness').textContent.startsWith('updated')"
#: Lines of texts and attributes with a value that is not there, or is no number.
_BROKEN = r"""(() => {
  const texts = [document.documentElement.innerText];
  for (const element of document.querySelectorAll('*')) {
    for (const attribute of element.attributes) texts.push(attribute.value);
    if (element.tagName === 'title') texts.push(element.textContent);
  }
  const wrong = /\b(NaN|undefined|null|Infinity)\b|\[object/;
  return texts.flatMap((text) => text.split('\n')).filter((line) => wrong.test(line));
})()"""
_ANSWERED = """document.getElementById('detail').open
  && !document.getElementById('detail-body').innerText.startsWith('asking')"""


def walk(browser: Browser) -> Iterator[tuple[str, list[str], str]]:
    """Choose each choice and open each dialog of a page that is open.

    :returns: of each: its name, the lines with broken values, and the text that is shown
    """
    browser.wait(LOADED)
    text = 'document.body.innerText'
    yield 'page', browser.run(_BROKEN), browser.run(text)
    for name in ('class', 'window', 'outcome'):
        values = browser.run(
            f"[...document.querySelectorAll('#{name} option')].map((o) => o.value)"
        )
        for value in [*values[1:], values[0]]:
            browser.run(
                "document.getElementById('freshness').textContent = '';"
                f"document.getElementById('{name}').value = '{value}';"
                f"document.getElementById('{name}').dispatchEvent(new Event('input'))"
            )
            browser.wait(LOADED)
            yield f'{name} {value}', browser.run(_BROKEN), browser.run(text)
    for rows in ('#decisions .rows', '#groups .rows'):
        for row in range(browser.run(f"document.querySelectorAll('{rows} button').length")):
            browser.run(f"document.querySelectorAll('{rows} button')[{row}].click()")
            yield _dialog(browser, f'{rows} {row}')
    browser.run("document.getElementById('map').focus()")
    browser.press('Home')
    for host in range(
        browser.run("Number(document.getElementById('map').ariaLabel.match(/\\d+/)[0])")
    ):
        browser.press('Enter')
        yield _dialog(browser, f'host {host}')
        browser.run("document.getElementById('map').focus()")
        browser.press('ArrowRight')


def _dialog(browser: Browser, name: str) -> tuple[str, list[str], str]:
    browser.wait(_ANSWERED)
    shown = browser.run("document.getElementById('detail').innerText")
    broken = browser.run(_BROKEN)
    browser.run("document.getElementById('detail').close()")
    return name, broken, shown
