"""MADDPG: an actor for each agent of a team, trained by critics that see everything."""
