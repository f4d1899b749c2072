"""The side `d3rlpy` of updates.py: the updates of d3rlpy's offline algorithms, with batches from its own buffer."""

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout

KINDS = {"iql": "IQLConfig", "td3_bc": "TD3PlusBCConfig", "cql": "CQLConfig"}
EPISODE = 1000  # steps


def d3rlpy_updates(algo: str, batch: int, hidden: Sequence[int], rows: int) -> Callable[[], None]:
    """Return a function that samples a batch and makes an update. The dataset is random: 8 observations, 2 actions."""
    import numpy as np

    with redirect_stdout(sys.stderr):  # d3rlpy prints a log, and stdout belongs to `serve`
        import d3rlpy

        rng, last = np.random.default_rng(0), np.arange(rows) % EPISODE == EPISODE - 1
        dataset = d3rlpy.dataset.MDPDataset(
            rng.standard_normal((rows, 8)).astype(np.float32),
            rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
            rng.standard_normal((rows, 1)).astype(np.float32),
            np.zeros(rows, np.float32),
            last.astype(np.float32),
        )
        encoder = d3rlpy.models.encoders.VectorEncoderFactory(list(hidden))
        options = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder, "batch_size": batch}
        options |= {"value_encoder_factory": encoder} if algo == "iql" else {}
        options |= {"alpha_learning_rate": 0.0} if algo == "cql" else {}  # a fixed weight, as in ours
        model = getattr(d3rlpy.algos, KINDS[algo])(**options).create(device="cpu:0")
        model.build_with_dataset(dataset)

    def update() -> None:
        model.update(dataset.sample_transition_batch(batch))

    return update
