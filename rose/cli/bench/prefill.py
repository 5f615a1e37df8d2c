"""`rose bench prefill`: time to the first token."""

from rose.cli.bench.checks import require_at_least, require_positive
from rose.cli.bench.flags import Counts
from rose.cli.bench.session import Engine, Output, known_positions, measure_points, start_session

# The imports inside the functions keep `rose bench --help` quick.

_LENGTHS = (8192, 32768, 65536, 128000)


def prefill(
    model: str,
    /,
    *,
    lengths: Counts | None = None,
    batch: Counts = (1,),
    repeats: int = 5,
    warmup: int = 1,
    engine: Engine = None,
    output: Output = None,
) -> None:
    """Time to the first token of prompts of random tokens, with an empty cache, and its cost per million input tokens.

    Parameters
    ----------
    model
        A bundled model, a folder, or a name on the Hugging Face hub; with --load-format dummy a published name.
    lengths
        Tokens of a prompt; by default 8192, 32768, 65536 and 128000, as far as the model has positions.
    batch
        Prompts that arrive together; the time is until all have their first token.
    repeats
        Runs, of which the median is told.
    warmup
        Runs before those.
    """
    from rose.bench.lengths import choose_lengths
    from rose.bench.points import prefill_point

    require_positive(repeats=repeats, lengths=min(lengths or _LENGTHS), batch=min(batch))
    require_at_least(0, warmup=warmup)
    max_position = known_positions(model, engine)
    lengths = choose_lengths(
        "--lengths", lengths, _LENGTHS, max_position=max_position, needed=lambda length: length + 1
    )
    session = start_session(model, engine, output, max_model_len=max(lengths) + 1, max_num_seqs=max(batch))
    measure_points(
        (prefill_point(session, length, size, repeats=repeats, warmup=warmup) for length in lengths for size in batch),
        output,
    )
