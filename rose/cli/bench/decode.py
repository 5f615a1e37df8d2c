"""`rose bench decode`: time of a step."""

from rose.cli.bench.checks import require_at_least, require_positive
from rose.cli.bench.flags import BenchEngineFlags, BenchOutputFlags, ContextFillFlag, Counts
from rose.cli.bench.session import Engine, Output, known_positions, measure_points, start_session

# The imports inside the functions keep `rose bench --help` quick.

_LEAST_STEP_TOKENS = 4096  # what an engine takes at least, if it is left the choice
_CONTEXTS = (8192, 32768)


def decode(
    model: str,
    /,
    *,
    context: Counts | None = None,
    batches: Counts = (1, 2, 4, 8, 16, 32, 64, 128),
    steps: int = 32,
    repeats: int = 3,
    warmup: int = 8,
    temperature: float = 1.0,
    context_fill: ContextFillFlag = "random",
    engine: Engine = None,
    output: Output = None,
) -> None:
    """Time of a decode step of a full batch, and its cost per million output tokens, decoding alone.

    Parameters
    ----------
    model
        A bundled model, a folder, or a name on the Hugging Face hub; with --load-format dummy a published name.
    context
        Tokens that each request has in the cache; by default 8192 and 32768, as far as the model has positions.
    batches
        Requests that decode together.
    steps
        Steps in a run.
    repeats
        Runs; the median of their mean steps is told.
    warmup
        Steps before those.
    temperature
        0 takes the best token, which makes random weights repeat themselves and route unevenly.
    context_fill
        random puts random numbers into the cache; prefill computes prompts.
    """
    from rose.bench.decode import longest_request
    from rose.bench.lengths import choose_lengths
    from rose.bench.points import decode_point, num_extra_steps

    require_positive(repeats=repeats, steps=steps, context=min(context or _CONTEXTS), batches=min(batches))
    require_at_least(0, warmup=warmup, temperature=temperature)
    flags, settings = engine or BenchEngineFlags(), output or BenchOutputFlags()
    require_positive(profile_steps=settings.profile_steps)
    num_steps = steps * repeats + warmup + num_extra_steps(settings.profile_steps)
    step_tokens = flags.max_num_batched_tokens or _LEAST_STEP_TOKENS
    max_position = known_positions(model, engine)
    context = choose_lengths(
        "--context",
        context,
        _CONTEXTS,
        max_position=max_position,
        needed=lambda length: longest_request(length, min(batches), num_steps, step_tokens),
    )
    longest = longest_request(max(context), max(batches), num_steps, step_tokens)
    session = start_session(
        model,
        engine,
        output,
        max_model_len=longest if max_position is None else min(longest, max_position),
        max_num_seqs=max(batches),
    )
    measure_points(
        (
            decode_point(
                session,
                length,
                size,
                steps=steps,
                repeats=repeats,
                warmup=warmup,
                temperature=temperature,
                fill=context_fill,
            )
            for length in context
            for size in batches
        ),
        output,
    )
