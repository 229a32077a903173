# SPDX-License-Identifier: Apache-2.0
"""The page about rules is true."""

import pathlib
import re

import pytest

from gantt import exceptions
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import RequestSpec
from gantt.core.rules import nova_json, tree
from gantt.core.rules.facts import FACTS
from gantt.core.rules.parser import parse
from gantt.core.rules.rule import RULES_MAX, parse_rule
from tests.core.builders import a_host, a_table
from tests.core.rules.worlds import a_pipeline, a_site, asked, decide

PAGE = (pathlib.Path(__file__).parents[3] / 'doc/source/user/rules.rst').read_text()
SPEC = RequestSpec(resources={'VCPU': 2})


def blocks(name):
    """Return lines of the literal blocks of a class."""
    blocks_ = re.findall(rf'   :class: {name}\n\n((?:   .*\n|\n)+)', PAGE)
    return [line.strip() for block in blocks_ for line in block.splitlines() if line.strip()]


def rows(name):
    """Yield rows of the tables of a class, without their headers."""
    for body in re.findall(rf'   :class: {name}\n\n((?:   .*\n|\n)+)', PAGE):
        for row in body.split('   * - ')[2:]:
            yield [' '.join(cell.split()) for cell in re.split(r'\n     -(?=\s|$)', row)]


def the_hosts():
    for number, row in enumerate(rows('hosts'), 1):
        name, location, zone, traits, free, version = row
        parts = [int(p) for p in version.split('.')] if version else [0, 0, 0]
        yield a_host(
            number,
            name=name,
            location=location,
            zone=zone,
            vcpu=int(free),
            traits=[t for t in traits.split(', ') if t],
            hypervisor=Hypervisor(version=parts[0] * 1_000_000 + parts[1] * 1000 + parts[2]),
        )


def test_the_page_has_hosts_and_conditions():
    assert len(list(the_hosts())) == 3
    assert len(list(rows('conditions'))) > 15
    assert len(blocks('rule')) > 10


@pytest.mark.parametrize('number', range(len(list(rows('conditions')))))
def test_a_condition_of_the_page_holds_for_the_hosts_it_says(number):
    condition, hosts, _ = list(rows('conditions'))[number]
    table = a_table(*the_hosts())
    mask = parse(condition.strip('`')).mask(table, SPEC)
    held = [name for name, yes in zip(table.names, mask, strict=True) if yes]
    assert held == [name for name in hosts.split(', ') if name], condition


def test_what_the_page_says_novas_forms_are_they_are():
    seen = 0
    for form, rule in rows('nova'):
        form, rule = form.strip('`'), rule.strip('`')
        if form.startswith('['):
            compiled = nova_json.compiled_query(form)
        else:
            compiled = nova_json.requirement(form, 'capabilities.cpu_info:cores', False)
        assert compiled.text == rule, form
        seen += 1
    assert seen > 7


def test_every_rule_of_the_page_is_understood():
    table = a_table(*the_hosts())
    for text in blocks('rule'):
        assert parse_rule(text).mask(table, SPEC).shape == (3,), text


def test_every_error_of_the_page_is_the_one_that_comes():
    lines = blocks('wrong-rule')
    assert len(lines) % 2 == 0
    for text, problem in zip(lines[::2], lines[1::2], strict=True):
        with pytest.raises(exceptions.InvalidRule) as caught:
            parse_rule(text)
        assert caught.value.kwargs['problem'] == problem


def test_the_refusal_of_the_page_is_the_one_that_comes():
    decision = decide(a_site(), asked('location in "s1"', '"GPU" in traits'), a_pipeline())
    assert decision.reason.replace('"s1"', '"site1"') in ' '.join(PAGE.split())


def test_the_bounds_of_the_page_are_those_in_force():
    for bound in (
        f'at most {tree.TEXT_MAX} characters',
        f'{tree.NODES_MAX} comparisons',
        f'{tree.LIST_MAX} items in a list',
        f'{tree.LITERAL_MAX} characters in one text',
        f'at most {RULES_MAX} rules',
    ):
        assert bound in ' '.join(PAGE.split()), bound


def test_every_fact_can_be_asked_about_and_says_what_it_is():
    table = a_table(*the_hosts())
    for fact in FACTS.values():
        key = 'VCPU' if fact.key == 'CLASS' else 'x'
        name = f'{fact.name}.{key}' if fact.key else fact.name
        assert parse(f'known {name}').mask(table, SPEC).shape == (3,), name
        assert fact.help and not fact.help.endswith('.')
