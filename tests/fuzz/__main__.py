"""`python -m tests.fuzz SUBJECT [libFuzzer's options]`: a coverage-guided fuzzer on the parser of a chat format.

`make fuzz` installs atheris, which it needs, and runs it. A stream that breaks a promise is left in a file `crash-…`;
given as the last argument, that stream is tried alone.
"""

import sys

import atheris

with atheris.instrument_imports(include=["rose.chat"]):
    from tests.chat.subjects import SUBJECTS, subject
    from tests.fuzz.targets import ParserTarget


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in SUBJECTS:
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(SUBJECTS)} [options] [corpus or crash]")
    atheris.Setup(sys.argv, ParserTarget(subject(name)))
    atheris.Fuzz()


main()
