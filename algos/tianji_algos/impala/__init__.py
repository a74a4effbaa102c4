"""IMPALA (Espeholt et al., 2018) as Agent and Embryo: an actor-critic that corrects for its samples' age."""
