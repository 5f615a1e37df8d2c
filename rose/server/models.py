"""`/v1/models`: the names that requests may use."""

import time
from typing import Any

from fastapi import APIRouter

from rose.server.errors import model_not_found


class Models:
    """Lists the served names. All stand for the one model; the first is the one put in answers."""

    def __init__(self, names: tuple[str, ...], max_model_len: int) -> None:
        created = int(time.time())
        self._models = {
            name: {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "rose",
                "root": names[0],
                "parent": None,
                "max_model_len": max_model_len,
            }
            for name in names
        }

    def router(self) -> APIRouter:
        """The routes, to be put into an app."""
        router = APIRouter()
        router.add_api_route("/v1/models", self.list_models)
        # A name may have a slash, which clients send plain or percent-encoded.
        router.add_api_route("/v1/models/{name:path}", self.get_model)
        return router

    async def list_models(self) -> dict[str, Any]:
        """All served names."""
        return {"object": "list", "data": list(self._models.values())}

    async def get_model(self, name: str) -> dict[str, Any]:
        """One served name."""
        if name not in self._models:
            raise model_not_found(name, tuple(self._models))
        return self._models[name]
