# SPDX-License-Identifier: Apache-2.0
"""Log lines: request ids, facts and masked secrets, as they reach a file."""

import logging
import subprocess
import sys
import textwrap
import threading

import pytest
from oslo_config import cfg
from oslo_log import formatters

from gantt.telemetry import log

REQUEST = '11111111-2222-4333-8444-555555555555'


def _run(tmp_path, body):
    """Run ``body`` in a process of its own that logs to a file; the lines of the file."""
    path = tmp_path / 'gantt.log'
    head = f"""
        import logging
        from oslo_config import cfg
        from gantt.telemetry import log
        conf = cfg.ConfigOpts()
        log.register_opts(conf)
        conf(['--log-file', {str(path)!r}], project='gantt', default_config_files=[])
        log.setup(conf)
        LOG = logging.getLogger('gantt.example')
        """
    code = textwrap.dedent(head) + textwrap.dedent(body)
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)
    return path.read_text().splitlines()


def test_lines_of_a_request_carry_its_id_and_others_do_not(tmp_path):
    lines = _run(
        tmp_path,
        f"""
        LOG.info('before')
        with log.request({REQUEST!r}):
            LOG.info('inside')
            with log.request('99999999-2222-4333-8444-555555555555'):
                LOG.info('nested')
            LOG.info('inside again')
        LOG.info('after')
        """,
    )
    ids = [line.split('[')[1].split(']')[0] for line in lines]
    assert ids == ['-', REQUEST, '99999999-2222-4333-8444-555555555555', REQUEST, '-']
    assert lines[1].endswith('inside')
    assert ' INFO gantt.example [' in lines[0]


def _line_of(conf, **more):
    inner = formatters.ContextFormatter(datefmt=conf.log_date_format, config=conf)
    record = logging.makeLogRecord(
        {
            'name': 'gantt.decisions',
            'levelno': logging.INFO,
            'levelname': 'INFO',
            'msg': 'placed %s',
            'args': ('db://a:b@c',),
            'request_id': REQUEST,
            **more,
        }
    )
    return log.formatter_for(inner, conf).format(record), log.MaskingFormatter(inner).format(record)


@pytest.fixture
def conf():
    new_conf = cfg.ConfigOpts()
    log.register_opts(new_conf)
    new_conf([], project='gantt', default_config_files=[])
    return new_conf


@pytest.mark.parametrize(
    'more', [{}, {'request_id': None}, {'request_id': '-'}, {'levelno': logging.ERROR}]
)
def test_a_line_written_without_oslo_log_is_the_one_that_it_writes(conf, more):
    quick, stock = _line_of(conf, **more)
    assert quick == stock
    assert quick.endswith('] placed db://a:***@c')


@pytest.mark.parametrize(
    ('option', 'value'),
    [
        ('logging_context_format_string', 'site: %(request_id)s %(message)s'),
        ('log_date_format', '%d.%m.%Y'),
    ],
)
def test_a_shape_that_a_site_chose_is_kept(conf, option, value):
    before, _ = _line_of(conf)
    conf.set_override(option, value)
    quick, stock = _line_of(conf)
    assert quick == stock != before


def test_secrets_never_reach_the_file(tmp_path):
    lines = _run(
        tmp_path,
        """
        LOG.info('connecting to %s', 'postgresql://gantt:s3cret@db.example/gantt')
        LOG.info('transport rabbit://guest:s3cret@a:5672,guest:s3cret@b:5672//')
        LOG.info("options {'admin_password': 's3cret', 'host': 'a'}")
        try:
            raise ValueError('plain text stays, amqp://u:s3cret@h/ does not')
        except ValueError:
            LOG.exception('trouble with http://u:s3cret@h/')
        """,
    )
    text = '\n'.join(lines)
    assert 's3cret' not in text
    assert 'postgresql://gantt:***@db.example/gantt' in text
    assert 'plain text stays' in text


@pytest.mark.parametrize(
    ('values', 'line'),
    [
        ({'a': 1, 'b': 'x'}, 'a=1 b=x'),
        ({'none': None, 'yes': True, 'no': False}, 'yes=true no=false'),
        ({'seconds': 0.12345678, 'hosts': ['a', 'b']}, 'seconds=0.123457 hosts=a,b'),
        ({'text': 'two words'}, 'text="two words"'),
        ({'text': 'say "no"\n'}, 'text="say \\"no\\"\\n"'),
        ({'text': ''}, 'text=""'),
        ({'text': 'a=b'}, 'text="a=b"'),
    ],
)
def test_facts_are_split_by_a_program_without_guessing(values, line):
    assert log.facts(**values) == line


def test_the_request_id_is_one_thread_s_own():
    seen = []
    with log.request(REQUEST):
        thread = threading.Thread(target=lambda: seen.append(log.context.get_current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_the_line_shapes_are_defaults_that_a_site_may_change():
    conf = cfg.ConfigOpts()
    log.register_opts(conf)
    conf([], project='gantt', default_config_files=[])
    assert conf.logging_context_format_string == log.REQUEST_LINE_FORMAT
    assert conf.logging_default_format_string == log.LINE_FORMAT
