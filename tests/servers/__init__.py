"""Real servers on loopback that stand for the network's far side."""
