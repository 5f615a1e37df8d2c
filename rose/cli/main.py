"""The `rose` command. Each subcommand is a module of its own, imported only when it is used."""

import errno
import sys
import types
from typing import Any, Union, get_args, get_origin

import cyclopts

from rose import __version__
from rose.cli.option_names import with_option_names
from rose.cli.streams import as_one_line, discard_output, prepare_streams
from rose.errors import RoseError


def _refuse_fractions(_app: cyclopts.App, _commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """Refuse `1.5` for a whole number, which cyclopts would round to 2."""
    for argument in arguments:
        if argument.parameter.converter is None and _is_whole_number(argument.hint):
            for token in argument.tokens:
                if "." in token.value:
                    raise cyclopts.CoercionError(
                        f"{token.value!r} is no whole number.", token=token, argument=argument, target_type=int
                    )


def _is_whole_number(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType, list):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return len(kinds) == 1 and _is_whole_number(kinds[0])
    return hint is int


app = cyclopts.App(
    name="rose",
    version=__version__,
    help="Serve OpenAI's gpt-oss models on NVIDIA Hopper GPUs.",
    config=[cyclopts.config.Env("ROSE_", command=False), _refuse_fractions],
)

COMMANDS = {
    "serve": "rose.cli.serve:serve",
    "chat": "rose.cli.chat:chat",
    "generate": "rose.cli.generate:generate",
    "parse": "rose.cli.parse:parse",
    "inspect": "rose.cli.inspect:inspect",
    "logits": "rose.cli.logits:logits",
    "convert": "rose.cli.convert:convert",
    "synth": "rose.cli.synth:synth",
    "verify": "rose.cli.verify:verify",
    "bench": "rose.cli.bench.app:app",
}
for _name, _target in COMMANDS.items():
    app.command(_target, name=_name)


def main() -> None:
    """Run the command line. A user's mistake is one line on stderr and exit status 2, never a traceback."""
    prepare_streams()
    try:
        try:
            _run(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except cyclopts.CycloptsError as error:
        print(f"rose: error: {_usage_error(error)}", file=sys.stderr)
        sys.exit(2)
    except RoseError as error:
        message = with_option_names(str(error), app, sys.argv[1:])
        print(f"rose: error: {as_one_line(message)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        discard_output()
        sys.exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        discard_output()
        print(f"rose: error: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(arguments: list[str]) -> None:
    if arguments[:1] in ([], ["--help"], ["-h"]):
        app.resolved_commands()  # a command has its line in the list only once it is imported
    app(arguments, print_error=False, exit_on_error=False)


def _usage_error(error: cyclopts.CycloptsError) -> str:
    message = str(error)
    match error:
        case cyclopts.MissingArgumentError(keyword=None, argument=cyclopts.Argument() as argument):
            positional = argument.field_info.is_positional
            message = f"{argument.name.lstrip('-').upper() if positional else argument.name} is missing."
        case cyclopts.MissingArgumentError(keyword=str(keyword)):
            message = f"{keyword} needs a value."
        case cyclopts.UnusedCliTokensError(unused_tokens=[*tokens]):
            message = f"Unexpected: {' '.join(tokens)}."
    message = message if message.endswith((".", "?")) else f"{message}."
    return f"{message} See `{' '.join(['rose', *(error.command_chain or ())])} --help`."


if __name__ == "__main__":
    main()
