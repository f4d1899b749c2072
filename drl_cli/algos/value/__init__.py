"""DQN and algorithms derived from DQN. They learn a value for each action and choose the best action."""
