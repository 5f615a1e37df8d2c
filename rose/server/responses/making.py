"""From a sound request to a response that is being made."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from rose.chat.answer_format import ToolChoice
from rose.chat.conversation import Message
from rose.chat.tokenizer import Tokenizer
from rose.errors import RequestError
from rose.server.builtin_tools.toolbox import Toolbox
from rose.server.generation import Generation, GenerationRequest, Generator
from rose.server.intake import Received
from rose.server.logprobs import LogprobSpeller
from rose.server.responses.builtin_items import is_partial
from rose.server.responses.convert import check, to_conversation, to_response, to_sampling_params, wants_summary
from rose.server.responses.items import as_items, check_parts, to_messages, to_stored
from rose.server.responses.objects import OutputItem, Response
from rose.server.responses.offered import OfferedTools
from rose.server.responses.run import ResponseRun
from rose.server.responses.schema import (
    STORED_ITEMS,
    CodeInterpreterCallInput,
    InputItem,
    ItemReference,
    ResponsesRequest,
    WebSearchCallInput,
)
from rose.server.responses.store import ResponseStore, StoredResponse, read_history
from rose.server.responses.truncate import drop_oldest_turns
from rose.server.responses.writer import ResponseWriter
from rose.server.settings import ServerSettings

MAX_TOOL_CALLS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for. items: of the request itself; messages: the chat so far, the turns before it too."""

    body: ResponsesRequest
    tools: OfferedTools
    items: list[InputItem]
    messages: tuple[Message, ...]
    request: GenerationRequest
    response: Response

    @property
    def max_calls(self) -> int:
        """How many calls of built-in tools are run."""
        asked = self.body.max_tool_calls
        return MAX_TOOL_CALLS if asked is None else min(asked, MAX_TOOL_CALLS)


class ResponseMaker:
    """Makes responses with one generator, toolbox and store."""

    def __init__(
        self,
        *,
        generator: Generator,
        tokenizer: Tokenizer,
        settings: ServerSettings,
        store: ResponseStore,
        toolbox: Toolbox,
    ) -> None:
        self._generator = generator
        self._speller = LogprobSpeller(tokenizer)
        self._settings = settings
        self._store = store
        self._toolbox = toolbox

    async def read(self, received: Received[ResponsesRequest]) -> Order:
        """Find out what is wanted. Raises `RequestError`."""
        body = received.body
        check(body)
        tools = OfferedTools(body, self._toolbox)
        items = await self._own_items(body)
        history = STORED_ITEMS.validate_python(await read_history(self._store, body.previous_response_id))
        messages = to_messages([*history, *items])
        request = await self._request(body, tools, messages)
        response = to_response(body, tools, model=received.model, default=request.sampling_params)
        if not self._store.keeps:
            response = msgspec.structs.replace(response, store=False)
        return Order(body=body, tools=tools, items=items, messages=messages, request=request, response=response)

    async def start(
        self, order: Order, *, on_end: Callable[[str], None], first_output_wait_s: float | None = None
    ) -> ResponseRun:
        """Start to make it. Raises `RequestError` for what the engine refuses."""
        request = order.request
        if order.tools.builtins and order.max_calls == 0:
            choice = order.tools.choice_after(may_call_builtins=False)
            request = dataclasses.replace(request, tool_choice=choice)
        generation = await self._generator.start(request, first_output_wait_s=first_output_wait_s)
        writer = ResponseWriter(
            order.response,
            self._speller,
            is_builtin=order.tools.is_builtin,
            include=frozenset(order.body.include or ()),
            namespaced=order.tools.namespaced,
            reasoning_as_summary=self._settings.reasoning_summary == "text" and wants_summary(order.body),
        )

        async def go_on(output: Sequence[OutputItem], num_tokens: int, num_calls: int) -> Generation | None:
            return await self._go_on(order, output, num_tokens, num_calls)

        return ResponseRun(
            generation,
            writer,
            tools=self._toolbox.session(),
            go_on=go_on,
            max_calls=order.max_calls,
            is_alive=lambda: self._generator.is_alive,
            save=lambda ended: self.keep(ended, order),
            on_end=on_end,
        )

    async def keep(self, response: Response, order: Order) -> None:
        """Store the response as it is by now, if it is to be stored."""
        if response.store:
            record = StoredResponse(
                id=response.id,
                previous_response_id=response.previous_response_id,
                response=msgspec.to_builtins(response),
                input=to_stored(order.items),
            )
            await self._store.put(record)

    async def _own_items(self, body: ResponsesRequest) -> list[InputItem]:
        """The request's items, with what is known here of those that it only refers to, or tells in part."""
        given = as_items(body.input)
        check_parts(given)
        items: list[InputItem] = []
        for item in given:
            if isinstance(item, ItemReference):
                found = await self._store.find_item(item.id)
                items += STORED_ITEMS.validate_python([found]) if found is not None else ()
            elif isinstance(item, (CodeInterpreterCallInput, WebSearchCallInput)) and item.id and is_partial(item):
                told = item.model_dump(exclude_unset=True, exclude_none=True)
                items += STORED_ITEMS.validate_python([(await self._store.find_item(item.id) or {}) | told])
            else:
                items.append(item)
        return items

    async def _request(
        self, body: ResponsesRequest, tools: OfferedTools, messages: tuple[Message, ...]
    ) -> GenerationRequest:
        params = to_sampling_params(body)
        conversation = to_conversation(body, messages, tools, current_date=self._settings.prompt_date())
        if not conversation.messages:
            raise RequestError("input must not be empty", param="input", code="invalid_value")
        if body.truncation == "auto":
            room = self._generator.max_model_len - (params.max_tokens or 1)
            conversation = await drop_oldest_turns(conversation, self._generator.render, room)
        return GenerationRequest(
            conversation=conversation, sampling_params=params, tool_choice=tools.choice or ToolChoice()
        )

    async def _go_on(
        self, order: Order, output: Sequence[OutputItem], num_tokens: int, num_calls: int
    ) -> Generation | None:
        """The next generation of a response that has called a built-in tool; None if it has no token left."""
        limit = order.request.sampling_params.max_tokens
        if limit is not None and num_tokens >= limit:
            return None
        made = to_messages(STORED_ITEMS.validate_python(msgspec.to_builtins(output)))
        request = await self._request(order.body, order.tools, order.messages + made)
        left = None if limit is None else limit - num_tokens
        following = dataclasses.replace(
            request,
            sampling_params=msgspec.structs.replace(request.sampling_params, max_tokens=left),
            tool_choice=order.tools.choice_after(may_call_builtins=num_calls < order.max_calls),
            may_exceed_context=True,
        )
        return await self._generator.start(following)
