"""Packed training data, written by worker processes while the model trains.

Examples are packed into rows of equal length. A row is one int32 per token: the token in the low 16 bits, then 8 bits
for the number of the document, then 7 bits for the weight of the loss of predicting this token, in sixteenths.
"""

import math
import multiprocessing
import os
import queue
from collections.abc import Iterator
from random import Random

import numpy as np
import numpy.typing as npt

from demo.targets import Encoded, Encoder
from demo.tasks.mixture import random_example
from rose.chat.tokenizer import load_tokenizer

DOCUMENT_SHIFT, WEIGHT_SHIFT = 16, 24
WEIGHT_UNIT = 16
_TYPICAL_TARGET = 60
_BUFFER = 256

Rows = npt.NDArray[np.int32]


def weight_code(target_length: int) -> int:
    """The weight of each target token of an example.

    Falls with the root of the length: the short answers without working are the hardest to learn, and would drown in
    the tokens of the long workings.
    """
    return max(1, min(127, round(WEIGHT_UNIT * math.sqrt(_TYPICAL_TARGET / target_length))))


def pack(examples: list[Encoded], row_length: int, pad_id: int) -> Rows:
    """Pack examples into rows, longest first, each into the first row with room.

    What is longer than a row is left out.
    """
    contents: list[list[Encoded]] = []
    room: list[int] = []
    for example in sorted(examples, key=len, reverse=True):
        if len(example) > row_length:
            continue
        place = next((i for i, free in enumerate(room) if free >= len(example)), len(room))
        if place == len(room):
            contents.append([])
            room.append(row_length)
        contents[place].append(example)
        room[place] -= len(example)
    rows = np.full((len(contents), row_length), pad_id, dtype=np.int32)
    for row, row_examples in zip(rows, contents, strict=True):
        end = 0
        for number, example in enumerate(row_examples, start=1):
            start, middle, end = end, end + len(example.prompt), end + len(example)
            row[start:middle] = example.prompt
            row[middle:end] = example.target
            row[start:end] |= number << DOCUMENT_SHIFT
            row[middle:end] |= weight_code(len(example.target)) << WEIGHT_SHIFT
    return rows


def batches(tokenizer_path: str, seed: int, num_rows: int, row_length: int) -> Iterator[Rows]:
    """Endless batches of `num_rows` packed rows of fresh examples."""
    tokenizer = load_tokenizer(tokenizer_path)
    encode, rng = Encoder(tokenizer), Random(seed)
    pad_id = tokenizer.special_id("<|endoftext|>") or 0
    rows = np.empty((0, row_length), dtype=np.int32)
    while True:
        while len(rows) < num_rows:
            fresh = pack([encode(random_example(rng)) for _ in range(_BUFFER)], row_length, pad_id)
            rows = np.concatenate((rows, fresh))
        yield rows[:num_rows]
        rows = rows[num_rows:]


def _work(out: "multiprocessing.Queue[Rows]", tokenizer_path: str, seed: int, num_rows: int, row_length: int) -> None:
    for batch in batches(tokenizer_path, seed, num_rows, row_length):
        out.put(batch)


class BatchStream:
    """Batches from worker processes. Start it before CUDA is touched: the workers are forked.

    If the workers fall behind, an earlier batch is given again, so that training never waits.
    """

    def __init__(self, tokenizer_path: str, num_rows: int, row_length: int, num_workers: int, seed: int) -> None:
        # The workers are the parallelism; threads inside them would only get in each other's way.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        context = multiprocessing.get_context("fork")
        self._queue: multiprocessing.Queue[Rows] = context.Queue(maxsize=4 * num_workers)
        self._past: list[Rows] = []
        self._rng = Random(seed)
        self.num_fresh = self.num_repeated = 0
        self._workers = [
            context.Process(
                target=_work, args=(self._queue, tokenizer_path, seed * 1000 + i, num_rows, row_length), daemon=True
            )
            for i in range(num_workers)
        ]
        for worker in self._workers:
            worker.start()

    def next(self) -> Rows:
        """The next batch."""
        try:
            batch = self._queue.get(block=len(self._past) < 50, timeout=300)
        except queue.Empty:
            self.num_repeated += 1
            return self._rng.choice(self._past)
        self.num_fresh += 1
        if len(self._past) < 2000:
            self._past.append(batch)
        return batch

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.terminate()
