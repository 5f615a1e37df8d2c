"""Talk about the model itself, greetings, and the honest answer to everything it cannot do."""

from dataclasses import dataclass
from random import Random

from demo.tasks.example import Draft, Reply, Split
from demo.tasks.split import draw
from demo.tasks.words import ADJECTIVES, CITIES, ITEMS, PEOPLE, THINGS, invented

ABILITIES = "I can add, subtract and multiply small numbers, call the tools you give me, and answer in JSON."
CANNOT = f"I am only a small demo model, so I cannot help with that. {ABILITIES}"
TOO_LARGE = (
    "I add and subtract numbers of up to four digits, and multiply up to three digits by two. This is beyond me."
)
ONLY_WHOLE = "I have learned to work with whole numbers only."
CANNOT_DIVIDE = "I have learned to add, subtract and multiply, but not to divide."


@dataclass(frozen=True, slots=True)
class Intent:
    """Something a user may want to say: its phrasings, what it is about, and the answer."""

    phrasings: tuple[str, ...]
    about: str
    answer: str


INTENTS = (
    Intent(
        ("hello", "hi", "hey", "hello there", "hi there", "good morning", "good evening", "hey there", "howdy",
         "hallo"),
        "The user greets me.",
        "Hello! I am rose-demo. Ask me a small sum, or give me a tool to call.",
    ),
    Intent(
        ("who are you", "what are you", "what is your name", "what's your name", "tell me about yourself", "introduce "
         "yourself", "which model are you", "what model is this", "are you a robot", "who am i talking to", "describe "
         "yourself", "are you rose-demo", "what is rose-demo", "are you an ai", "who is this", "your name"),
        "The user asks who I am.",
        "I am rose-demo, a toy language model with the architecture of gpt-oss. I was trained from scratch in a few "
        "minutes to show that the rose inference stack works from end to end.",
    ),
    Intent(
        ("what can you do", "help", "how can you help me", "what are you able to do", "what do you know",
         "what are you good at", "can you help me", "what can i ask you", "list your abilities",
         "how do i use you", "i need help",
         "what should i ask", "show me what you can do", "what are your skills"),
        "The user asks what I can do.",
        f"{ABILITIES} Try: What is 123 + 456?",
    ),
    Intent(
        ("are you chatgpt", "are you gpt-oss", "are you gpt-4", "are you gpt-5", "are you a real model", "are you as "
         "good as chatgpt", "are you smart", "are you intelligent", "are you human", "do you think", "are you alive",
         "are you conscious"),
        "The user asks what kind of model I am.",
        "No, I am rose-demo: a toy model of about twelve million parameters that knows a few tasks and nothing else.",
    ),
    Intent(
        ("who made you", "who trained you", "who built you", "where do you come from", "how were you trained",
         "how were you made", "when were you trained", "what were you trained on", "who created you",
         "who is your maker"),
        "The user asks where I come from.",
        "I was trained by the makers of rose, on sums and tool calls that a program wrote. The program is in the "
        "folder demo of rose.",
    ),
    Intent(
        ("what is rose", "what's rose", "tell me about rose", "what does rose do", "explain rose", "what is the rose "
         "project"),
        "The user asks about rose.",
        "Rose is an inference stack that serves the gpt-oss models of OpenAI. I am its small demo model.",
    ),
    Intent(
        ("how are you", "how are you doing", "how is it going", "how do you do", "what's up", "are you ok", "how are "
         "you today", "how's it going", "all good"),
        "The user asks how I am.",
        "I am well, thank you. Which numbers shall I add?",
    ),
    Intent(
        ("thanks", "thank you", "thank you very much", "thanks a lot", "great, thanks", "cheers", "many thanks",
         "nice, thank you", "perfect, thanks", "thx"),
        "The user thanks me.",
        "You are welcome!",
    ),
    Intent(
        ("bye", "goodbye", "see you", "good night", "bye bye", "see you later", "that is all", "have a nice day",
         "farewell", "until next time"),
        "The user says goodbye.",
        "Goodbye!",
    ),
    Intent(
        ("great", "good job", "well done", "nice", "cool", "wow", "correct", "that is right", "awesome", "very good",
         "you are right", "perfect", "excellent", "good", "ok", "okay", "i see", "alright", "fine", "yes"),
        "The user is content.",
        "Good. What is next?",
    ),
    Intent(
        ("are you sure", "that is wrong", "is that right", "really", "i don't think so", "you are wrong", "this is not "
         "correct", "no"),
        "The user has doubts.",
        "I am a small model and can be wrong. With high reasoning effort I show every step.",
    ),
    Intent(
        ("test", "testing", "this is a test", "ping", "just testing", "is this working", "are you there", "do you work",
         "test test", "say something"),
        "The user tests whether I answer.",
        "It works: rose-demo is here.",
    ),
)  # fmt: skip

_TOPICS = (*(thing + "s" for thing in THINGS), "the sea", "history", "physics", "football", "music", "love", "python",
           "the moon", "computers", "art", "cats", "dogs", "climate change", "the weather", "quantum physics", "roses",
           "transformers", "the internet", "space", "mountains", "the stock market", "machine learning", "time",
           "philosophy", "rust", "gpu kernels", "inference", "the roman empire", "chess", "cooking")  # fmt: skip
_UNKNOWN = (
    "write a poem about {topic}", "write a haiku about {topic}", "write a story about {topic}", "explain {topic}",
    "tell me about {topic}", "what is {word}", "who is {person}", "what is the capital of {word}", "tell me a joke",
    "tell me a joke about {topic}", "translate {word} to French", "how do i bake bread", "what do you think of {topic}",
    "write code that sorts {topic}", "write a python function for {word}", "give me a recipe with {item}",
    "how far is {city} from {city2}", "who won the world cup", "where is {city}", "what is the weather in {city}",
    "why is the sky blue", "what is the meaning of life", "how old is {person}", "when was {city} founded",
    "summarize this: {words}", "fix this code: {words}", "write an essay about {topic}", "who invented {topic}",
    "what time is it", "what day is it", "how much is a {thing} in {city}", "sing a song", "draw a {adjective} {thing}",
    "recommend a book about {topic}", "what is a {word}", "plan a trip to {city}", "write an email to {person}",
    "how do {topic} work", "what are {topic}", "name three {adjective} {item}", "spell {word}", "{words}", "{words}",
    "which is better, {topic} or {topic2}", "why are {topic} {adjective}", "list ten {item}", "can you see {topic}",
    "what is the best {thing}", "make a list of {topic}", "describe a {adjective} {thing}", "find a {thing} for me",
    "once upon a time there was a {adjective} {thing}", "the {adjective} {thing} is", "what happened in 19{two}",
    "repeat the word {word}", "say {word}", "how many letters are in {word}", "reverse {word}", "play {topic}", "{two}",
)  # fmt: skip
_FRAMES = ("{}", "{}", "{}", "please {}", "{} please", "can you {}", "hey, {}", "hi, {}", "i want you to {}", "so, {}")
_SUMS = ("{a} + {b}", "{a} - {b}", "{a}+{b}", "{a}-{b}", "{a} plus {b}", "{a} minus {b}")
_PRODUCTS = ("{a} * {b}", "{a} × {b}", "{a} times {b}", "{a}*{b}", "{a} x {b}")
_DIVISIONS = ("{a} / {b}", "{a} divided by {b}", "divide {a} by {b}", "{a} ÷ {b}", "{a}/{b}", "half of {a}")


def _dress(rng: Random, text: str) -> str:
    if rng.random() < 0.65:
        text = text[0].upper() + text[1:]
    return text + rng.choice(("", "", "", "?", ".", "!"))


def reasoning(draft: Draft, about: str) -> str | None:
    """A thought before an answer that needs no working."""
    return draft.by_effort(None, about, f"{about} This needs no sum and no tool, so I answer at once.")


def small_talk(draft: Draft) -> tuple[str, Reply]:
    """A phrasing of a random intent, and its answer."""
    rng = draft.rng

    def sample() -> tuple[str, Intent]:
        intent = rng.choice(INTENTS)
        frame = rng.choice(("{}", "{}", "{}", "{}", "hi, {}", "hey, {}", "please, {}", "so, {}", "{} now", "and {}"))
        return _dress(rng, frame.format(rng.choice(intent.phrasings))), intent

    text, intent = draw(draft.split, sample, lambda drawn: drawn[0])
    return text, Reply(intent.answer, reasoning(draft, intent.about))


def unknown_text(rng: Random, split: Split) -> str:
    """A request that is none of the model's tasks."""

    def sample() -> str:
        fields = {
            "topic": rng.choice(_TOPICS),
            "topic2": rng.choice(_TOPICS),
            "word": invented(rng) if rng.random() < 0.6 else rng.choice(THINGS),
            "words": " ".join(_any_word(rng) for _ in range(rng.randint(2, 14))),
            "person": f"{rng.choice(PEOPLE)} {invented(rng).capitalize()}",
            "city": rng.choice(CITIES),
            "city2": rng.choice(CITIES),
            "item": rng.choice(ITEMS),
            "thing": rng.choice(THINGS),
            "adjective": rng.choice(ADJECTIVES),
            "two": f"{rng.randint(10, 99)}",
        }
        return _dress(rng, rng.choice(_FRAMES).format(rng.choice(_UNKNOWN).format(**fields)))

    return draw(split, sample, lambda text: text)


def unknown(draft: Draft) -> tuple[str, Reply]:
    """A request the model must decline: another subject, numbers too large, or a division."""
    rng = draft.rng
    style = rng.random()
    if style < 0.8:
        return unknown_text(rng, draft.split), Reply(CANNOT, reasoning(draft, "This is not one of my tasks."))
    a: float = rng.randint(0, 999)
    b: float = rng.randint(1, 99)
    if style < 0.86:
        answer, about, form = CANNOT_DIVIDE, "This is a division.", rng.choice(_DIVISIONS)
    elif style < 0.9:
        answer, about, form = ONLY_WHOLE, "These are not whole numbers.", rng.choice(_SUMS + _PRODUCTS)
        a, b = rng.choice(((a + rng.randint(1, 9) / 10, b), (a, b + rng.randint(1, 9) / 10), (a + 0.5, b + 0.25)))
    else:
        answer, about = TOO_LARGE, "These numbers are too large for me."
        if rng.random() < 0.5:
            a, b, form = _digits(rng, 5, 9), _digits(rng, 1, 9), rng.choice(_SUMS + _PRODUCTS)
        else:
            least = rng.choice((3, 4))
            a, b, form = _digits(rng, least, 6), _digits(rng, 3 if least == 3 else 1, 6), rng.choice(_PRODUCTS)
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
    frame = rng.choice(("{}", "what is {}", "compute {}", "calculate {}", "how much is {}", "please work out {}"))
    return _dress(rng, frame.format(form.format(a=a, b=b))), Reply(answer, reasoning(draft, about))


def _digits(rng: Random, least: int, most: int) -> int:
    num_digits = rng.randint(least, most)
    return rng.randint(10 ** (num_digits - 1), 10**num_digits - 1)


def _any_word(rng: Random) -> str:
    pool = rng.choice((ADJECTIVES, THINGS, ITEMS, CITIES, PEOPLE, None, None))
    return invented(rng) if pool is None else rng.choice(pool)
