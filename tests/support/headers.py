"""Message headers with defaults for fields that a test does not care about."""

from drl_cli.runtime.messages import Block, InsertTransition, TrainReport


def make_block(rows, **fields):
    """Return the first block of worker 0, with `rows` rows from the same number of steps and version 0."""
    first = fields.get("first_env_step", 0)
    defaults = {"worker": 0, "incarnation": 0, "number": 0, "version": 0, "opt_steps": 0}
    return Block(rows=rows, **(defaults | {"first_env_step": first, "last_env_step": first + rows} | fields))


def make_insert(rows, **fields):
    """Return the header of such a block."""
    return InsertTransition((make_block(rows, **fields),), (), 0.0)


def make_train_report(opt_steps, num_updates, **fields):
    defaults = {"skipped": 0, "metrics": {}, "seconds": 1.0, "num_batches": num_updates, "replay": {}}
    return TrainReport(opt_steps=opt_steps, num_updates=num_updates, **(defaults | {"sample_s": 0.0} | fields))
