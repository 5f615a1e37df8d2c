"""Ids that answers carry."""

import uuid


def new_id(prefix: str) -> str:
    """A fresh id, such as `msg_0123…`."""
    return f"{prefix}_{uuid.uuid4().hex}"
