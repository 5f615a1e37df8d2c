"""The requests that wait to be admitted, in order."""

from collections import OrderedDict

from rose.engine.request import Request


class WaitingQueue:
    """First come, first served; preempted requests return to the front. Removal from the middle is cheap."""

    def __init__(self) -> None:
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request.key in self._requests

    def push(self, request: Request) -> None:
        """Join at the end."""
        self._requests[request.key] = request

    def push_front(self, request: Request) -> None:
        """Join at the front."""
        self._requests[request.key] = request
        self._requests.move_to_end(request.key, last=False)

    def peek(self) -> Request:
        """The next request; it stays."""
        return next(iter(self._requests.values()))

    def remove(self, request: Request) -> None:
        """Leave from anywhere."""
        del self._requests[request.key]
