"""What runs inside the sandbox: one piece of Python from standard input, as a notebook would run it.

The value of a last expression is shown. This file is not imported: its text is given to `python -I -c`, so that it
needs nothing of rose where it runs.
"""

import ast
import builtins
import linecache
import os
import sys
import traceback
import types

NAME = "<code>"


def run(source: str) -> None:
    """Run the source as `__main__`; a last expression's value is printed unless it is None."""
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)  # for tracebacks
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    tree = ast.parse(source, NAME)
    last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    exec(compile(tree, NAME, "exec"), module.__dict__)
    exec(compile(ast.Interactive(list(last)), NAME, "single"), module.__dict__)


def main() -> None:
    """Read, run, and tell of an exception without this file's own frames."""
    source = sys.stdin.buffer.read().decode(errors="replace")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [""]
    try:
        run(source)
    except SystemExit:
        raise
    except BaseException as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != NAME:
            frame = frame.tb_next
        sys.stdout.flush()
        traceback.print_exception(error.with_traceback(frame))
        sys.exit(1)


if __name__ == "__main__":
    main()
