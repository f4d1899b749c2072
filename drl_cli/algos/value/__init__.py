"""DQN and its descendants: they learn action values and act by the best of them."""
