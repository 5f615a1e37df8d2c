"""The frontend's side of the engine, and all of scheduling, work without torch."""

import subprocess
import sys

MODULES = [
    "rose.engine.config",
    "rose.engine.core",
    "rose.engine.inproc_client",
    "rose.engine.kv_cache.manager",
    "rose.engine.kv_cache.plan",
    "rose.engine.messages",
    "rose.engine.process_client",
    "rose.engine.scheduler",
    "rose.llm",
]


def test_no_torch() -> None:
    code = f"import sys, {', '.join(MODULES)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
