"""The parts models are made of; they know number formats and parallelism."""
