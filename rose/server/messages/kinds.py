"""The fields of a Messages request that its schema does not name. `docs/api.md` lists them for users."""

from rose.server.fields import FieldKinds

MESSAGES_FIELDS = FieldKinds(
    harmless=frozenset({"cache_control", "inference_geo", "metadata", "service_tier"}),
    unsupported={"container": (), "mcp_servers": ([],)},
)
