"""Words: a few lists of real ones, and pronounceable inventions, which teach copying instead of recall."""

from random import Random

from demo.tasks.example import Split
from demo.tasks.split import draw


def _words(text: str) -> list[str]:
    return text.split()


PEOPLE = _words(
    """Anna Ben Carla David Emma Finn Grace Hugo Ida Jonas Kim Lena Max Nora Oscar Paula Quinn Rosa Sam Tina Uma Victor
    Wendy Yara Zoe Alice Bob Maria Peter Lucy Tom Mia Leo Ella Noah"""
)

CITIES = _words(
    """Oban Paris London Berlin Rome Madrid Vienna Oslo Dublin Prague Lisbon Athens Warsaw Zurich Tokyo Delhi Cairo
    Lima Boston Chicago Sydney Toronto Nairobi Seoul Leith Bergen Porto Turin Lyon Hamburg Seattle Denver Austin
    Kyoto Quito Havana Tunis Accra Perth Munich Geneva Naples Milan Mumbai Beijing"""
)

ITEMS = _words(
    """apples pens books lamps eggs cups coins stamps chairs roses tickets stones cards balls shirts boxes cookies
    marbles pencils bottles oranges bananas candles keys maps plates spoons toys stickers flowers"""
)

THINGS = _words(
    """lamp chair table book phone pen cup clock bike door window kettle camera radio jacket shirt umbrella bottle
    keyboard laptop mirror candle violin ladder hammer bucket blanket carpet basket drum"""
)

ADJECTIVES = _words(
    """red blue green black white old new small big cheap light heavy round soft quiet fast warm cold tall short clean
    bright"""
)

STATES = _words(
    """open closed sunny cloudy rainy windy clear ready busy full empty late on off active cold warm dry wet new
    delayed shipped paid free sold quiet"""
)

_ONSETS = _words(
    """b c d f g h j k l m n p qu r s t v w x y z bl br ch cl cr dr fl fr gl gr kl kn kr pl pr sc sh sk sl sm sn sp st
    str th tr tw wr zh"""
)
_NUCLEI = _words("""a e i o u a e i o u y ai au ea ee ei ia ie io oa oo ou ua ue""")
_CODAS = _words("""b ck d f g k l m n p r s t v x z ch ft ld lk lm lt mp nd ng nk nt pt rd rk rm rn rt sh sk st th""")


def invented(rng: Random, split: Split = "train") -> str:
    """A pronounceable word that is in no dictionary, in lower case."""

    def sample() -> str:
        num_syllables = rng.choices((1, 2, 3), (2, 5, 2))[0]
        syllables = (
            rng.choice(_ONSETS) + rng.choice(_NUCLEI) + (rng.choice(_CODAS) if rng.random() < 0.6 else "")
            for _ in range(num_syllables)
        )
        return "".join(syllables)

    return draw(split, sample, lambda word: word)


def invented_phrase(rng: Random, split: Split = "train") -> str:
    """One or two invented words, in one of the usual ways of writing names; sometimes with a number."""
    style = rng.random()
    words = [invented(rng, split) for _ in range(rng.choices((1, 2, 3), (7, 4, 1))[0])]
    if style < 0.5:
        text = " ".join(word.capitalize() for word in words)
    elif style < 0.75:
        text = " ".join(words)
    elif style < 0.85:
        text = "-".join(word.capitalize() for word in words)
    elif style < 0.9:
        text = words[0].upper()
    else:
        text = f"{words[0].capitalize()} {rng.randint(1, 999)}"
    return text


def identifier(rng: Random, *words: str) -> str:
    """`words` joined as names in code are: snake_case mostly, else camelCase or with dashes."""
    style = rng.random()
    if style < 0.75:
        return "_".join(words)
    if style < 0.93:
        return words[0] + "".join(word.capitalize() for word in words[1:])
    return "-".join(words)
