"""Function calling: which function to call, with which arguments, and what to say of its result.

Names, parameters, descriptions and arguments are partly real words and partly inventions. What is asked for can only be
found by reading the prompt, so the model has to learn to read and copy.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from demo.tasks.arithmetic import OPERATIONS, Operation, Problem, random_problem, working
from demo.tasks.example import Call, Draft, Example, Grade, Reply, Split
from demo.tasks.questions import question
from demo.tasks.setting import conversation
from demo.tasks.small_talk import CANNOT, reasoning, small_talk, unknown_text
from demo.tasks.split import draw
from demo.tasks.words import ADJECTIVES, CITIES, ITEMS, PEOPLE, STATES, THINGS, identifier, invented, invented_phrase
from rose.chat.conversation import FunctionTool, Message


@dataclass(frozen=True, slots=True)
class Request:
    """A function, how a user asks for it, and the call that answers.

    subject: what a tool's result is about, as the answer names it.
    """

    tool: FunctionTool
    text: str
    call: Call
    subject: str


def _schema(properties: dict[str, dict[str, Any]], required: list[str] | None = None) -> dict[str, Any]:
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required}


def _parameter(rng: Random, kind: str, description: str | None = None) -> dict[str, Any]:
    described = description is not None and rng.random() < 0.5
    return {"type": kind, "description": description} if described else {"type": kind}


def _maybe(rng: Random, description: str) -> str | None:
    """The description, or none: some tools have only their name."""
    if rng.random() < 0.15:
        return None
    return description if rng.random() < 0.6 else description.rstrip(".")


# What can be looked up, of what kind of thing, and what the thing is called as a parameter.
_LOOKUPS = (
    ("weather", "city"), ("time", "city"), ("population", "city"), ("mayor", "city"), ("temperature", "city"),
    ("news", "city"), ("traffic", "city"), ("price", "item"), ("stock", "item"), ("color", "item"), ("weight", "item"),
    ("rating", "item"), ("size", "item"), ("age", "person"), ("email", "person"), ("phone number", "person"),
    ("address", "person"), ("salary", "person"), ("status", "order"), ("owner", "project"), ("deadline", "project"),
    ("tide", "city"), ("forecast", "city"), ("definition", "word"), ("schedule", "person"), ("balance", "account"),
)  # fmt: skip
_PARAMETERS = {
    "city": ("city", "location", "place", "town", "name"),
    "item": ("item", "product", "name", "article", "thing"),
    "person": ("name", "person", "user", "who", "employee"),
    "order": ("order", "order_id", "id"),
    "project": ("project", "name", "project_name"),
    "word": ("word", "term"),
    "account": ("account", "account_id"),
}
_UNITS = ("celsius", "fahrenheit", "metric", "imperial", "euro", "dollar", "kg", "pounds", "miles", "km")
_ASK = (
    "what is the {noun} {of} {arg}", "what's the {noun} {of} {arg}", "tell me the {noun} {of} {arg}",
    "{noun} {of} {arg}",
    "give me the {noun} {of} {arg}", "i need the {noun} {of} {arg}", "look up the {noun} {of} {arg}", "{noun} {arg}",
    "can you find the {noun} {of} {arg}", "do you know the {noun} {of} {arg}", "please check the {noun} {of} {arg}",
    "find out the {noun} {of} {arg}", "how is the {noun} {of} {arg}", "show me the {noun} {of} {arg}",
    "what {noun} does {arg} have", "get the {noun} {of} {arg}", "could you get me the {noun} {of} {arg}, please",
)  # fmt: skip
_AGAIN = (
    "and {arg}",
    "and for {arg}",
    "what about {arg}",
    "and of {arg}",
    "how about {arg}",
    "now {arg}",
    "same for {arg}",
)


def _argument(rng: Random, kind: str, split: Split) -> str:
    """A word or phrase to look up; always an invented one on the held-out side."""
    if split == "held_out" or rng.random() < 0.6:
        return invented_phrase(rng, split)
    if kind == "city":
        return rng.choice(CITIES)
    if kind == "person":
        return rng.choice(PEOPLE)
    if kind == "item":
        style = rng.random()
        thing = rng.choice(THINGS if style < 0.7 else ITEMS)
        return f"{rng.choice(ADJECTIVES)} {thing}" if style < 0.3 else thing
    if kind in ("order", "account"):
        return f"{rng.choice(('', '#', 'A', 'X-', 'K'))}{rng.randint(1, 99999)}"
    return invented(rng, split)


def _dress(rng: Random, text: str) -> str:
    """As people type: capital or not, mark or not. What is to be copied stays as it is."""
    if rng.random() < 0.7:
        text = text[0].upper() + text[1:]
    mark = "?" if text.lower().startswith(("what", "how", "can", "could", "do", "and")) else "."
    return text + mark if rng.random() < 0.65 else text


@dataclass(frozen=True, slots=True)
class Lookup:
    """A function that looks up `noun` of things of a kind; calling it makes a request with a new argument."""

    rng: Random
    split: Split
    tool: FunctionTool
    noun: str
    kind: str
    of: str
    parameter: str
    option: str | None
    choices: tuple[str, ...]

    def argument(self) -> str:
        """Something to look up."""
        return _argument(self.rng, self.kind, self.split)

    def ask(self, what: str) -> str:
        """A request for the noun of `what`."""
        return self.rng.choice(_ASK).format(noun=self.noun, of=self.of, arg=what)

    def call(self, argument: str) -> Call:
        """The call that looks up `argument`."""
        return Call(self.tool.name, {self.parameter: argument})

    def __call__(self) -> Request:
        """A request, sometimes with the option named."""
        argument = self.argument()
        text, call = self.ask(argument), self.call(argument)
        if self.option and self.rng.random() < 0.5:
            call.arguments[self.option] = self.rng.choice(self.choices)
            text = f"{text} in {call.arguments[self.option]}"
        return Request(self.tool, _dress(self.rng, text), call, argument)


def lookup(rng: Random, split: Split) -> Lookup:
    """A function that looks something up: weather of a city, price of an item, or an invented noun of anything."""
    if split == "held_out" or rng.random() < 0.5:
        noun = invented(rng, split)
        kind = rng.choice((*_PARAMETERS, invented(rng)))
    else:
        noun, kind = rng.choice(_LOOKUPS)
    verb = rng.choice(("get", "get", "lookup", "find", "fetch", "check", "query", "show", ""))
    name = identifier(rng, *([verb] if verb else []), *noun.split())
    parameter = rng.choice(_PARAMETERS.get(kind, (kind, kind, "name", "key", "query", "q", invented(rng))))
    of = rng.choice(("of", "of", "for", "in" if kind == "city" else "of"))
    description = rng.choice(
        (f"Get the {noun} of a {kind}.", f"Look up the {noun} for a {kind}.", f"Returns the {noun} of the {kind}.",
         f"Find the {noun} of a given {kind}.", f"The {noun} of a {kind}.", f"Get the current {noun} in a {kind}.")
    )  # fmt: skip
    properties = {parameter: _parameter(rng, "string", rng.choice((f"The {kind}.", f"Name of the {kind}", kind)))}
    option: str | None = None
    choices: tuple[str, ...] = _UNITS
    if rng.random() < 0.2:
        option = rng.choice(("unit", "units", "format"))
        properties[option] = _parameter(rng, "string", "Unit of the result")
        if rng.random() < 0.5:
            choices = tuple(rng.sample(_UNITS, 2))
            properties[option]["enum"] = list(choices)
    tool = FunctionTool(name, _maybe(rng, description), _schema(properties, [parameter]))
    return Lookup(rng, split, tool, noun, kind, of, parameter, option, choices)


def action(rng: Random, split: Split) -> Callable[[], Request]:
    """A function that does something, with a text, a number or both as arguments."""
    made = rng.choice((_send, _order, _timer, _search, _invented_action, _invented_action))
    return made(rng, split)


def _send(rng: Random, split: Split) -> Callable[[], Request]:
    thing = rng.choice(("message", "email", "note", "text"))
    to, body = rng.choice(("to", "recipient", "name", "user")), rng.choice(("text", "message", "body", "content"))
    tool = FunctionTool(
        identifier(rng, "send", thing),
        _maybe(rng, f"Send a {thing} to someone."),
        _schema({to: _parameter(rng, "string", "Who gets it"), body: _parameter(rng, "string", f"The {thing}")}),
    )

    def request() -> Request:
        who = _argument(rng, "person", split)
        words = " ".join(rng.choice((invented(rng, split), rng.choice(THINGS))) for _ in range(rng.randint(1, 5)))
        text = rng.choice(("send {who} the {thing}: {words}", "send the {thing} {words} to {who}",
                           "send a {thing} to {who}: {words}", "{thing} to {who}: {words}"))  # fmt: skip
        text = text.format(who=who, thing=thing, words=words)
        text = text[0].upper() + text[1:] if rng.random() < 0.7 else text
        return Request(tool, text, Call(tool.name, {to: who, body: words}), who)

    return request


def _order(rng: Random, split: Split) -> Callable[[], Request]:
    item, quantity = rng.choice(("item", "product", "name")), rng.choice(("quantity", "count", "amount", "number", "n"))
    verb = rng.choice(("order", "buy", "book", "reserve"))
    properties = {item: _parameter(rng, "string", "What to get"), quantity: _parameter(rng, "integer", "How many")}
    if rng.random() < 0.4:
        properties = dict(reversed(properties.items()))
    tool = FunctionTool(
        identifier(rng, verb, rng.choice(("item", "product", "goods"))),
        _maybe(rng, f"{verb.capitalize()} a number of items."),
        _schema(properties),
    )

    def request() -> Request:
        what, count = _argument(rng, "item", split), rng.randint(2, 999)
        values = {item: what, quantity: count}
        text = _dress(rng, rng.choice(("{v} {n} {w}", "please {v} {n} {w}", "{v} {n} of {w}", "i want to {v} {n} {w}"))
                      .format(v=verb, n=count, w=what))  # fmt: skip
        return Request(tool, text, Call(tool.name, {key: values[key] for key in properties}), what)

    return request


def _timer(rng: Random, split: Split) -> Callable[[], Request]:
    thing, unit = (
        rng.choice(("timer", "alarm", "volume", "temperature", "brightness")),
        rng.choice(("minutes", "seconds")),
    )
    parameter = rng.choice((unit, "value", "level", "n", invented(rng, split)))
    tool = FunctionTool(
        identifier(rng, "set", thing),
        _maybe(rng, f"Set the {thing}."),
        _schema({parameter: _parameter(rng, "integer", "The value to set")}),
    )

    def request() -> Request:
        value = rng.randint(1, 999)
        text = rng.choice(("set the {t} to {n}", "set a {t} of {n}", "{t} to {n}", "please set the {t} to {n}"))
        return Request(tool, _dress(rng, text.format(t=thing, n=value)), Call(tool.name, {parameter: value}), thing)

    return request


def _search(rng: Random, split: Split) -> Callable[[], Request]:
    parameter = rng.choice(("query", "q", "text", "search_query", "keywords"))
    place = rng.choice(("web", "files", "documents", "notes", "database"))
    tool = FunctionTool(
        rng.choice((identifier(rng, "search", place), "search")),
        _maybe(rng, f"Search the {place}."),
        _schema({parameter: _parameter(rng, "string", "What to search for")}),
    )

    def request() -> Request:
        words = " ".join(rng.choice((invented(rng, split), rng.choice(THINGS))) for _ in range(rng.randint(1, 4)))
        form = rng.choice(("search for {}", "search the {p} for {}", "please search {}", "search {p}: {}", "search {}"))
        text = form.format(words, p=place)
        return Request(tool, _dress(rng, text), Call(tool.name, {parameter: words}), words)

    return request


def _invented_action(rng: Random, split: Split) -> Callable[[], Request]:
    """A verb nobody knows, of one to three named parameters given as `name value` or in order."""
    verb, thing = invented(rng, split), rng.choice((*THINGS, invented(rng, split)))
    names = list({invented(rng, split) if rng.random() < 0.6 else rng.choice(("name", "id", "mode", "level", "target"))
                  for _ in range(rng.randint(1, 3))})  # fmt: skip
    names.sort()
    rng.shuffle(names)
    kinds = {name: rng.choice(("string", "string", "integer")) for name in names}
    tool = FunctionTool(
        identifier(rng, verb, thing),
        _maybe(rng, f"{verb.capitalize()} the {thing}."),
        _schema({name: _parameter(rng, kinds[name], f"The {name}") for name in names}),
    )

    def request() -> Request:
        values: dict[str, Any] = {
            name: rng.randint(0, 999) if kinds[name] == "integer" else invented_phrase(rng, split) for name in names
        }
        said = list(values.items())
        rng.shuffle(said)
        glue = rng.choice((" ", " = ", ": "))
        text = f"{verb} the {thing} with " + rng.choice((", ", " and ")).join(f"{k}{glue}{v}" for k, v in said)
        first = str(next(iter(values.values())))
        return Request(tool, _dress(rng, text), Call(tool.name, values), first)

    return request


@dataclass(frozen=True, slots=True)
class Calculator:
    """A calculator tool of one of several shapes, and how a sum is put into a call of it."""

    tool: FunctionTool
    call: Callable[[Problem], Call]


def calculator(rng: Random, op: Operation) -> Calculator:
    """One function with an expression, one with an operation and two numbers, or one function for `op` alone."""
    shape = rng.random()
    if shape < 0.45:
        name = rng.choice(("calculate", "calculator", "calc", "evaluate", "compute", "math", "eval_expression"))
        parameter = rng.choice(("expression", "expression", "expr", "formula", "input", "query"))
        tool = FunctionTool(
            name,
            _maybe(rng, rng.choice(("Evaluate an arithmetic expression.", "Calculate.", "A calculator."))),
            _schema({parameter: _parameter(rng, "string", "The expression, e.g. 1 + 2")}),
        )
        return Calculator(tool, lambda p: Call(name, {parameter: f"{p.a} {p.op} {p.b}"}))
    x, y = rng.choice((("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"), ("num1", "num2")))
    kind = rng.choice(("number", "integer"))
    words = {"+": "add", "-": "subtract", "*": "multiply"}
    if shape < 0.65:
        name = rng.choice(("calculate", "calculator", "arithmetic", "compute"))
        operation = rng.choice(("operation", "op", "operator"))
        tool = FunctionTool(
            name,
            _maybe(rng, "Do arithmetic with two numbers."),
            _schema(
                {
                    operation: {"type": "string", "enum": list(words.values())},
                    x: _parameter(rng, kind, "The first number"),
                    y: _parameter(rng, kind, "The second number"),
                }
            ),
        )
        return Calculator(tool, lambda p: Call(name, {operation: words[p.op], x: p.a, y: p.b}))
    name = rng.choice({"+": ("add", "sum", "plus", "add_numbers"), "-": ("subtract", "minus", "sub"),
                       "*": ("multiply", "times", "mul", "multiply_numbers")}[op])  # fmt: skip
    tool = FunctionTool(
        name,
        _maybe(rng, f"{words[op].capitalize()} two numbers."),
        _schema({x: _parameter(rng, kind, "The first number"), y: _parameter(rng, kind, "The second number")}),
    )
    return Calculator(tool, lambda p: Call(name, {x: p.a, y: p.b}))


def _large_problem(rng: Random, split: Split) -> Problem:
    """A sum for a calculator: of any size up to six digits."""

    def sample() -> Problem:
        sizes = [10 ** rng.randint(1, 6) for _ in range(2)]
        op = rng.choice(OPERATIONS)
        return Problem(op, rng.randrange(sizes[0]), rng.randrange(sizes[1]))

    return draw(split, sample, lambda problem: problem.key)


def _name_words(tool: FunctionTool) -> set[str]:
    """The words of a function's name that tell it from others."""
    words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", tool.name).lower())
    return set(words) - {"get", "lookup", "find", "fetch", "check", "query", "show", "set", "send", "number"}


def _other_tools(rng: Random, wanted: FunctionTool | None, *, calculators: bool = True) -> tuple[FunctionTool, ...]:
    """`wanted` among up to three others, none of which could be taken for another.

    calculators: whether one may be among the others; not where the request is a sum.
    """
    tools = [wanted] if wanted else []
    for _ in range(rng.choices((0, 1, 2, 3), (5, 4, 3, 1))[0] + (wanted is None)):
        if calculators and rng.random() < 0.25:
            other = calculator(rng, rng.choice(OPERATIONS)).tool
        else:
            other = rng.choice((lookup, lookup, action))(rng, "train")().tool
        if not any(_name_words(other) & _name_words(tool) for tool in tools):
            tools.append(other)
    rng.shuffle(tools)
    return tuple(tools)


def _call_reasoning(draft: Draft, call: Call) -> str | None:
    told = ", ".join(f"{name} = {value}" for name, value in call.arguments.items())
    return draft.by_effort(
        None,
        f"I call {call.name}.",
        f"The function {call.name} can answer this. Its arguments are {told}. I call {call.name}.",
    )


def _call_reply(draft: Draft, call: Call) -> Reply:
    return Reply(call=call, reasoning=_call_reasoning(draft, call))


def _value(rng: Random, split: Split) -> str | int | float | bool:
    style = rng.random()
    if style < 0.35:
        return rng.randint(0, 9999)
    if style < 0.5:
        return round(rng.uniform(-50, 1000), rng.choice((1, 2)))
    if style < 0.55:
        return rng.random() < 0.5
    return rng.choice(STATES) if split == "train" and rng.random() < 0.4 else invented_phrase(rng, split)


def _shown(value: object) -> str:
    """A value of a result as the answer shows it: as JSON writes it, without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


def _result(rng: Random, split: Split) -> tuple[str, str]:
    """What a tool returned, and how the answer words it."""
    style = rng.random()
    if style < 0.3:
        text = " ".join(
            rng.choice((rng.choice(STATES), invented(rng, split), str(rng.randint(0, 999))))
            for _ in range(rng.randint(1, 5))
        )
        return text, text
    if style < 0.37:
        reason = rng.choice(
            ("not found", "timeout", "unknown name", f"no {invented(rng, split)}", invented_phrase(rng))
        )
        return json.dumps({"error": reason}), f"error {reason}"
    names = ("temperature", "status", "price", "value", "result", "sky", "count", "name", "unit", "total", "time")
    fields = {
        rng.choice(names) if rng.random() < 0.4 else invented(rng, split): _value(rng, split)
        for _ in range(rng.randint(1, 3))
    }
    compact = rng.random() < 0.3
    text = json.dumps(fields, separators=(",", ":") if compact else None, ensure_ascii=False)
    return text, ", ".join(f"{name} {_shown(value)}" for name, value in fields.items())


def _answer_reasoning(draft: Draft, call: Call) -> str | None:
    return draft.by_effort(
        None, f"{call.name} has answered.", f"{call.name} has answered. I tell the user what it says, and no more."
    )


class _Transcript:
    """Messages of a tool conversation as they pile up."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.messages: list[Message] = []
        self._num_calls = 0

    def user(self, text: str) -> None:
        self.messages.append(Message("user", text))

    def assistant(self, reply: Reply) -> None:
        self._num_calls += 1
        keep = self.draft.rng.random() < 0.7
        self.messages.append(reply.as_message(f"call_{self._num_calls}", keep_reasoning=keep))

    def tool(self, text: str) -> None:
        self.messages.append(Message("tool", text, tool_call_id=f"call_{self._num_calls}"))

    def finished(self, category: str, tools: tuple[FunctionTool, ...], reply: Reply, grade: Grade) -> Example:
        return Example(category, conversation(self.draft, self.messages, tools), reply, grade)


def _maker(rng: Random, split: Split) -> Callable[[], Request]:
    return (lookup if rng.random() < 0.6 else action)(rng, split)


def _chatter(transcript: _Transcript) -> None:
    """Sometimes a greeting came first."""
    rng = transcript.draft.rng
    if rng.random() < 0.12:
        text, reply = small_talk(Draft(rng, transcript.draft.effort, "train"))
        transcript.messages += [Message("user", text), reply.as_message()]


def tool_call(draft: Draft) -> Example:
    """The first call: choose the function and copy the arguments."""
    transcript = _Transcript(draft)
    _chatter(transcript)
    request = _maker(draft.rng, draft.split)()
    transcript.user(request.text)
    tools = _other_tools(draft.rng, request.tool)
    return transcript.finished("tool call", tools, _call_reply(draft, request.call), "call")


def tool_answer(draft: Draft) -> Example:
    """The answer from a tool's result."""
    rng, transcript = draft.rng, _Transcript(draft)
    _chatter(transcript)
    request = _maker(rng, draft.split)()
    transcript.user(request.text)
    transcript.assistant(_call_reply(draft, request.call))
    result, worded = _result(rng, draft.split)
    transcript.tool(result)
    reply = Reply(f"{request.subject}: {worded}", _answer_reasoning(draft, request.call))
    return transcript.finished("tool answer", _other_tools(rng, request.tool), reply, "text")


def tool_again(draft: Draft) -> Example:
    """A later turn asks for the same function with another argument: `and in Leith?`."""
    rng, transcript = draft.rng, _Transcript(draft)
    find = lookup(rng, draft.split)
    first = find()
    transcript.user(first.text)
    transcript.assistant(_call_reply(draft, first.call))
    result, worded = _result(rng, draft.split)
    transcript.tool(result)
    transcript.messages.append(Message("assistant", f"{first.subject}: {worded}"))
    second = find()
    if rng.random() < 0.5:
        # Only what changes is said; an option given before is not carried over.
        text = _dress(rng, rng.choice(_AGAIN).format(arg=second.subject))
        second = Request(find.tool, text, find.call(second.subject), second.subject)
    transcript.user(second.text)
    reply = _call_reply(draft, second.call)
    return transcript.finished("tool, second turn", _other_tools(rng, find.tool), reply, "call")


def tool_loop(draft: Draft) -> Example:
    """Two things are asked for at once: a call, a second call, and an answer from both results."""
    rng, transcript = draft.rng, _Transcript(draft)
    find = lookup(rng, draft.split)
    subjects = [find.argument(), find.argument()]
    calls = [find.call(subject) for subject in subjects]
    transcript.user(_dress(rng, find.ask(rng.choice((" and ", " and also ", ", ", " and ")).join(subjects))))
    tools = _other_tools(rng, find.tool)
    transcript.assistant(_call_reply(draft, calls[0]))
    result, worded = _result(rng, draft.split)
    transcript.tool(result)
    if rng.random() < 0.5:
        return transcript.finished("tool, two calls", tools, _call_reply(draft, calls[1]), "call")
    transcript.assistant(_call_reply(draft, calls[1]))
    result, worded_too = _result(rng, draft.split)
    transcript.tool(result)
    content = f"{subjects[0]}: {worded}; {subjects[1]}: {worded_too}"
    reply = Reply(content, _answer_reasoning(draft, calls[1]))
    return transcript.finished("tool, two results", tools, reply, "text")


def calculator_call(draft: Draft) -> Example:
    """With a calculator at hand, sums of any size go to it."""
    rng, transcript = draft.rng, _Transcript(draft)
    _chatter(transcript)
    problem = _large_problem(rng, draft.split)
    made = calculator(rng, problem.op)
    transcript.user(question(rng, problem))
    reply = _call_reply(draft, made.call(problem))
    return transcript.finished("calculator call", _other_tools(rng, made.tool, calculators=False), reply, "call")


def calculator_answer(draft: Draft) -> Example:
    """The answer from a calculator's result."""
    rng, transcript = draft.rng, _Transcript(draft)
    problem = _large_problem(rng, draft.split)
    made = calculator(rng, problem.op)
    call = made.call(problem)
    transcript.user(question(rng, problem))
    transcript.assistant(_call_reply(draft, call))
    key = rng.choice(("result", "value", "answer", invented(rng)))
    transcript.tool(rng.choice((str(problem.result), json.dumps({key: problem.result}), f"{problem.result}\n")))
    reply = Reply(problem.equation, _answer_reasoning(draft, call))
    return transcript.finished("calculator answer", _other_tools(rng, made.tool, calculators=False), reply, "number")


def tool_not_needed(draft: Draft) -> Example:
    """Tools are there, but the request is small talk, a sum no tool is made for, or none of the model's tasks."""
    rng, transcript = draft.rng, _Transcript(draft)
    style = rng.random()
    is_sum = 0.4 <= style < 0.75
    tools = _other_tools(rng, None, calculators=not is_sum)
    grade: Grade = "text"
    if style < 0.4:
        text, reply = small_talk(draft)
    elif is_sum:
        problem = random_problem(rng, draft.split)
        text, grade = question(rng, problem), "number"
        reply = Reply(problem.equation, working(problem, draft.effort))
    else:
        named = set[str]().union(*map(_name_words, tools))
        text = unknown_text(rng, draft.split)
        while any(word in text.lower() for word in named):
            text = unknown_text(rng, draft.split)
        reply = Reply(CANNOT, reasoning(draft, "This is not one of my tasks."))
    transcript.user(text)
    return transcript.finished("tool not needed", tools, reply, grade)
