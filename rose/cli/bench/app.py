"""The command `rose bench`: latency and cost of models on this machine, load on any server, and reports of both."""

import cyclopts

from rose.cli.bench.ceilings import ceilings
from rose.cli.bench.decode import decode
from rose.cli.bench.prefill import prefill
from rose.cli.bench.report import report
from rose.cli.bench.serve import serve
from rose.cli.bench.sweep import sweep

app = cyclopts.App(name="bench", help="Measure latency and cost; make reports.")

for _command in (prefill, decode, ceilings, serve, sweep, report):
    app.command(_command)
