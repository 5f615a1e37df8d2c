"""The API under a fuzzer that reads its OpenAPI document. Opt-in: `make test-api`."""

import os

if not os.environ.get("ROSE_TEST_API"):
    collect_ignore = ["test_document.py"]
