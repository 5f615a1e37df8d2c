"""How `rose-demo`, the checkpoint bundled with rose, is made: data, tokenizer, training, export and evaluation."""
