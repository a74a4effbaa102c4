"""TianJi from Python: train, read what a run left behind, and act with what it has learnt.

    import tianji

    run = tianji.train("configs/ppo_cartpole.toml", experiment={"seed": 3})
    print(run.summary["returns"]["best_mean_100"], run.metrics["env_steps"][-1])
    policy = tianji.load(run)
    action = policy.act(observation)

What goes wrong is a ``TianjiError``. Importing this imports no torch.
"""

from tianji.policy import ObservationError, Policy, load
from tianji.runs import Run, train
from tianji_cli.errors import TianjiError

__all__ = ["ObservationError", "Policy", "Run", "TianjiError", "load", "train"]
