"""MADDPG: an actor of its own for each agent of a team, trained by critics that see everything."""
