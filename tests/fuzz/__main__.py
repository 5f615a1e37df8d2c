"""`python -m tests.fuzz FORMAT [libFuzzer's options]`: a coverage-guided fuzzer on a format's parser.

`make fuzz` installs atheris, which it needs, and runs it. With `-print_final_stats=1` libFuzzer tells how many streams
it tried; a stream that fails is left in a file `crash-…`, and given as an argument it is tried alone.
"""

import sys

import atheris

with atheris.instrument_imports(include=["rose.chat"]):
    from tests.fuzz.formats import TARGETS


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(TARGETS)} [options] [corpus]")
    target = TARGETS[name]()
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


main()
