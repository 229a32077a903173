# SPDX-License-Identifier: Apache-2.0
"""``gantt group import``: a template of another tool, printed as the description of a group."""

import argparse
from importlib import metadata

from gantt import exceptions
from gantt.cli import base
from gantt.cli.endpoint import Exit, Failure, load_body
from gantt.core.messages import quoting
from gantt.templates.flavors import read_flavors
from gantt.templates.imported import ImportedGroup, TemplateSource

#: Entry points of the converters.
CONVERTERS = 'gantt.templates'


def _parameter(text: str) -> tuple[str, str]:
    """Return name and value.  :raises argparse.ArgumentTypeError: it has no name"""
    name, equals, value = text.partition('=')
    if not name or not equals:
        raise argparse.ArgumentTypeError('expected NAME=VALUE')
    return name, value


class GroupImport(base.Base):
    """Print a template of another tool as a description that "gantt group plan" takes.

    Nothing is sent anywhere. Comments name what each member was made of, and what was left out.
    """

    formats = ('text', 'json', 'yaml')
    auth_required = False
    arguments = (
        base.arg(
            'kind', metavar='KIND', help='terraform, heat-offline, or the name of another converter'
        ),
        base.arg(
            'file',
            metavar='FILE',
            help='what "terraform show -json PLAN" prints (- reads it), or a template of Heat',
        ),
        base.arg(
            '-e',
            '--environment',
            dest='environments',
            action='append',
            default=[],
            metavar='ENV',
            help='of heat-offline: an environment; repeat for several, the last one wins',
        ),
        base.arg(
            '--parameter',
            dest='parameters',
            action='append',
            default=[],
            type=_parameter,
            metavar='NAME=VALUE',
            help='of heat-offline: a parameter; repeat for several',
        ),
        base.arg(
            '--python',
            metavar='PYTHON',
            help="of heat-offline: a Python that has Heat's library, where this one has not",
        ),
        base.arg(
            '--flavors',
            required=True,
            metavar='FILE',
            help='flavors of the cloud: what "openstack flavor list --all --long -f json" prints',
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Convert and print."""
        args = parsed_args
        converters = {entry.name: entry for entry in metadata.entry_points(group=CONVERTERS)}
        if args.kind not in converters:
            raise Failure(
                f'KIND: expected one of {", ".join(sorted(converters))}; got {args.kind!r}',
                Exit.USAGE,
            )
        try:
            convert = converters[args.kind].load()
            source = TemplateSource(
                path=args.file,
                flavors=read_flavors(load_body(args.flavors)),
                environments=args.environments,
                parameters=dict(args.parameters),
                python=args.python,
            )
            imported: ImportedGroup = convert(source)
        except exceptions.GanttError as e:
            raise Failure(e.message, Exit.USAGE) from None
        if args.form != 'text':
            return self.show(args, imported.description, [])
        for line in _comments(imported):
            self.app.stdout.write(f'# {quoting.plain_text(line)}\n')
        self.app.stdout.write(base.dump_data('yaml', imported.description))
        return Exit.PLACED


def _comments(imported: ImportedGroup) -> list[str]:
    """Return what members were made of, and what was left out."""
    lines = [*imported.notes]
    lines += [f'{name}: {", ".join(addresses)}' for name, addresses in imported.addresses.items()]
    lines.append('once planned, each create has the scheduler hints gantt_plan and gantt_member:')
    lines.append('the uuid of the planned group, and the name before the colon')
    return [*lines, *(f'left out: {line}' for line in imported.left_out)]
