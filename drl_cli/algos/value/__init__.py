"""DQN and its descendants: they learn the value of each action and choose the action with the largest value."""
