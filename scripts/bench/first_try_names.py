"""The environments of gymnasium in first_try.py, for it and for its peers, which are in another virtual environment."""

GYMNASIUM = {
    "LunarLander": ("LunarLander-v3", {}, 250.0),
    "LunarLanderContinuous": ("LunarLander-v3", {"continuous": True}, 250.0),
    "Acrobot-v1": ("Acrobot-v1", {}, -80.0),
    "MountainCarContinuous-v0": ("MountainCarContinuous-v0", {}, 93.0),
    "BipedalWalker-v3": ("BipedalWalker-v3", {}, 300.0),
    "InvertedDoublePendulum-v5": ("InvertedDoublePendulum-v5", {}, 9350.0),
}
"""The environments of gymnasium by our name: id, arguments, and a good return."""
EPISODES = 20
"""The number of episodes of the last evaluation."""
