"""The side of the engine that holds the model and its device; the only one that imports torch."""
